"""Where the masters are: by the names that were given, or as etcd has them at the moment."""

from __future__ import annotations

from moonpool.schemas.config import ClientSettings, NodeSettings
from moonpool.schemas.masters import MasterNames
from moonpool.store_client.etcd_gateway import EtcdGateway, EtcdLogin


class Directory:
    """Thread-safe."""

    def __init__(self, masters: str, login: EtcdLogin | None = None) -> None:
        """`login`: to etcd, where it is asked. Raises InvalidParams."""
        self._where = MasterNames.parse(masters)
        self._etcd = EtcdGateway(self._where.etcd, login or EtcdLogin())

    @staticmethod
    def of(settings: ClientSettings | NodeSettings) -> Directory:
        """What the settings say. Raises InvalidParams, ConfigError."""
        return Directory(settings.master, EtcdLogin.of(settings))

    @property
    def names(self) -> list[str]:
        """Masters that are known without asking."""
        return list(self._where.names)

    @property
    def asks(self) -> bool:
        """Whether they have to be asked for."""
        return bool(self._where.etcd)

    def __str__(self) -> str:
        return str(self._where)

    def find(self, deadline_s: float) -> list[str]:
        """Addresses of all masters that live. Raises what EtcdGateway.read does."""
        if not self.asks:
            return self.names
        from moonpool.master.membership.records import MASTERS, MasterRecord, decode

        prefix = f"/moonpool/{self._where.cluster}/".encode() + MASTERS
        found = [decode(prefix, value) for value in self._etcd.read(prefix, deadline_s)]
        return sorted({record.address for record in found if isinstance(record, MasterRecord)})
