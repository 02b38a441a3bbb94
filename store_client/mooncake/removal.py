"""Removing objects, and asking where they lie."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moonpool.store_client.mooncake.calls import Calls, text, texts
from moonpool.store_client.mooncake.codes import INVALID_PARAMS
from moonpool.store_client.mooncake.replicas import ReplicaDescriptor


class RemovalCalls(Calls):
    """A removal is done when no reader can find the bytes any more. Only a pin refuses it."""

    def remove(self, key: str, force: bool = False) -> int:
        """0, -704 where it isn't there, -706 where it is pinned and `force` isn't given."""
        return self.batch_remove([text(key)], force)[0]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """The same of many keys."""
        names = texts(keys)
        return [INVALID_PARAMS] * len(names) if self._pool is None else self._pool.remove(names, force=force)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes objects in whose key the expression (Python's) is found. Returns how many, or a code."""
        try:
            wanted = re.compile(text(regex_pattern))
        except re.error:
            return INVALID_PARAMS
        if self._pool is None:
            return INVALID_PARAMS
        return self._pool.remove_where(lambda key: wanted.search(key) is not None, force=force)

    def remove_all(self, force: bool = False) -> int:
        """Removes everything of the tenant that was stored by calls like these. Returns how many, or a code."""
        return INVALID_PARAMS if self._pool is None else self._pool.remove_all(force=force)


class ReplicaCalls(Calls):
    """Where objects lie."""

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """The one replica, or [] where the object isn't there."""
        return self.batch_get_replica_desc([text(key)]).get(key, [])

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """Of the keys that are there."""
        names = texts(keys)
        return {} if self._pool is None else self._pool.replicas(names)
