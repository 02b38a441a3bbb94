"""The store that a `store` setting names. etcd's library is imported only where it is asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from moonpool.master.store.base import MetadataStore
from moonpool.master.store.file import FileStore
from moonpool.master.store.memory import MemoryStore
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import ConfigError

ENDPOINT = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
IN_MEMORY = ("", "memory")
ALLOWED = 'allowed: "memory", "file:PATH" or "etcd://HOST:PORT;HOST:PORT"'


def open_store(settings: MasterSettings) -> MetadataStore:
    """To be called in an event loop. Raises ConfigError, StoreFailed (a file somebody else has), CorruptStore."""
    kind, _, where = settings.store.partition(":")
    if settings.store in IN_MEMORY:
        return MemoryStore()
    if kind == "file" and where:
        return FileStore(Path(where).expanduser())
    endpoints = tuple(where.removeprefix("//").split(";"))
    if kind == "etcd" and where.startswith("//") and all(map(ENDPOINT.fullmatch, endpoints)):
        return _etcd(settings, endpoints)
    raise ConfigError(source="settings", field="store", problem=f"is {settings.store!r}; {ALLOWED}")


def _etcd(settings: MasterSettings, endpoints: tuple[str, ...]) -> MetadataStore:
    try:
        from moonpool.master.store.etcd import EtcdStore
        from moonpool.master.store.etcd_link import EtcdAccess
    except ImportError as error:
        problem = f"etcd needs the package {error.name}: pip install 'moonpool[master]'"
        raise ConfigError(source="settings", field="store", problem=problem) from None
    access = EtcdAccess(
        endpoints,
        settings.etcd_user,
        settings.etcd_password_file,
        settings.etcd_ca,
        settings.etcd_cert,
        settings.etcd_key,
    )
    return EtcdStore(access, f"/moonpool/{settings.cluster}/".encode())


def state_file(name: str) -> Path:
    """Where `moonpool serve` keeps the hard state of a node's name, as the XDG rules have it."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "moonpool" / f"{name}.hard-state"
