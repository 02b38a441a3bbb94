"""The keyspaces that a node has been told of, by digest and by the 64 bits that headers hold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from moonpool.schemas.access import Identity
from moonpool.schemas.errors import Forbidden, InvalidParams, KeyspaceUnknown
from moonpool.schemas.header import keyspace_word
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.packed import U64


class Keyspaces:
    """Specs by digest. Pure: whoever adds one also stores it in the segment's annex."""

    def __init__(self) -> None:
        self._specs: dict[bytes, KeyspaceSpec] = {}
        self._digests: dict[int, bytes] = {}

    def add(self, spec: KeyspaceSpec) -> tuple[bytes, bool]:
        """(digest, whether it is new). Raises InvalidParams where the spec can't be served."""
        spec.check()
        digest = spec.digest()
        if digest in self._specs:
            return digest, False
        word = keyspace_word(digest)
        if word in self._digests:  # headers couldn't tell them apart
            raise InvalidParams(
                field="keyspace", value=digest.hex(), allowed="another digest in its first 64 bits"
            )
        self._specs[digest] = spec
        self._digests[word] = digest
        return digest, True

    def discard(self, digest: bytes) -> None:
        """Forgets one that nothing is stored under."""
        if self._specs.pop(digest, None):
            del self._digests[keyspace_word(digest)]

    def spec(self, digest: bytes) -> KeyspaceSpec:
        """Raises KeyspaceUnknown."""
        found = self._specs.get(digest)
        if found is None:
            raise KeyspaceUnknown(keyspace=digest.hex())
        return found

    def check_visible(self, digests: Iterable[bytes], identity: Identity) -> None:
        """Raises KeyspaceUnknown for keyspaces of other tenants as for those that nobody has heard of."""
        if identity.sees_all:
            return
        for digest in digests:
            spec = self._specs.get(digest)
            if spec is None or spec.tenant != identity.tenant:
                raise KeyspaceUnknown(keyspace=digest.hex())

    def shows(self, word: int, identity: Identity) -> bool:
        """Whether what a header with these 64 bits names is that identity's business."""
        if identity.sees_all:
            return True
        digest = self._digests.get(word)
        return digest is not None and self._specs[digest].tenant == identity.tenant

    def words_of(self, tenant: str) -> U64:
        """What headers hold of each keyspace of a tenant."""
        own = [keyspace_word(digest) for digest, spec in self._specs.items() if spec.tenant == tenant]
        return np.array(own, dtype=np.uint64)

    def digest_of(self, word: int) -> bytes | None:
        """The digest that begins with a header's 64 bits."""
        return self._digests.get(word)

    @property
    def words(self) -> U64:
        """What headers hold of each."""
        return np.array(list(self._digests), dtype=np.uint64)

    def specs(self) -> list[KeyspaceSpec]:
        """All, in the order they came."""
        return list(self._specs.values())


def check_registering(spec: KeyspaceSpec, identity: Identity) -> None:
    """Raises Forbidden where the keyspace is another tenant's."""
    if not identity.sees(spec.tenant):
        detail = f"this token is of tenant {identity.tenant!r}, not {spec.tenant!r}"
        raise Forbidden(detail=f"{detail}: set tenant = {identity.tenant!r}")
