"""The `master` setting: masters by name, or the etcd that knows them."""

from __future__ import annotations

from dataclasses import dataclass

from moonpool.schemas.errors import InvalidParams

SCHEME = "etcd://"
DEFAULT_CLUSTER = "default"
NAMES_MAX = 64
ALLOWED = '"host:port", several of them with commas between, or "etcd://host:port;host:port/cluster"'


@dataclass(frozen=True, slots=True)
class MasterNames:
    """`names`: "host:port" each. Or else `etcd`: endpoints of the store in which `cluster` has its masters."""

    names: tuple[str, ...] = ()
    etcd: tuple[str, ...] = ()
    cluster: str = DEFAULT_CLUSTER

    @staticmethod
    def parse(text: str) -> MasterNames:
        """Raises InvalidParams."""
        if not text.startswith(SCHEME):
            return MasterNames(names=_parts(text, text, ","))
        where, _, cluster = text.removeprefix(SCHEME).partition("/")
        return MasterNames(etcd=_parts(where, text, ";"), cluster=cluster or DEFAULT_CLUSTER)

    def __str__(self) -> str:
        return f"{SCHEME}{';'.join(self.etcd)}/{self.cluster}" if self.etcd else ",".join(self.names)


def _parts(joined: str, text: str, separator: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in joined.split(separator))
    if not all(parts) or len(parts) > NAMES_MAX:
        raise InvalidParams(field="master", value=text, allowed=ALLOWED)
    return parts
