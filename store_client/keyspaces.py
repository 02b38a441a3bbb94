"""The keyspaces that this client was told of: masters and nodes that were started anew are told them again."""

from __future__ import annotations

from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.keyspace import KeyspaceSpec


class KeyspaceBook:
    """Digest to spec. Grows by what its process registers: a handful. Thread-safe."""

    def __init__(self) -> None:
        self._specs: dict[bytes, KeyspaceSpec] = {}

    def add(self, spec: KeyspaceSpec) -> bytes:
        """Returns the digest. Raises InvalidParams where the spec can't be served."""
        spec.check()
        digest = spec.digest()
        self._specs[digest] = spec
        return digest

    def find(self, keyspace: bytes) -> KeyspaceSpec | None:
        """The spec, where it was registered here."""
        return self._specs.get(keyspace)

    def get(self, keyspace: bytes) -> KeyspaceSpec:
        """The spec. Raises KeyspaceUnknown."""
        spec = self._specs.get(keyspace)
        if spec is None:
            raise KeyspaceUnknown(keyspace=keyspace.hex())
        return spec
