"""Which store a setting opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from moonpool.master.store.file import FileStore
from moonpool.master.store.memory import MemoryStore
from moonpool.master.store.opening import open_store, state_file
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import ConfigError


async def test_each_kind_opens(tmp_path: Path) -> None:
    memory = open_store(MasterSettings(store="memory"))
    file = open_store(MasterSettings(store=f"file:{tmp_path}/hard-state"))
    etcd = open_store(MasterSettings(store="etcd://etcd-0.etcd:2379;127.0.0.1:2;[::1]:3"))
    assert isinstance(memory, MemoryStore)
    assert isinstance(file, FileStore)
    assert type(etcd).__name__ == "EtcdStore"
    for store in (memory, file, etcd):
        await store.close()


@pytest.mark.parametrize(
    "text", ["disk", "file:", "etcd:", "etcd://", "etcd://host", "etcd://a:1;", "etcd://a:1,b:2"]
)
async def test_what_is_no_store_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"store: is .*etcd://HOST"):
        open_store(MasterSettings(store=text))


def test_serve_has_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_file("node") == tmp_path / "moonpool" / "node.hard-state"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_file("node") == tmp_path / ".local" / "state" / "moonpool" / "node.hard-state"
