"""MOONCAKE_CONFIG_PATH: a file written for Mooncake gives client settings, or an error that says why not."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import ConfigError
from moonpool.schemas.masters import MasterNames
from moonpool.schemas.mooncake_config import client_settings, load_mooncake_config, parse_master_address

TYPICAL = {
    "local_hostname": "10.0.0.7",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "10.0.0.1:50051",
    "global_segment_size": "4GB",
    "local_buffer_size": 1073741824,
    "protocol": "tcp",
    "device_name": "",
    "mode": "embedded",
    "enable_offload": False,
    "tenant_id": "team-a",
}


def test_a_typical_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text(json.dumps(TYPICAL))
    settings = load_mooncake_config(environment={"MOONCAKE_CONFIG_PATH": str(file)})
    assert settings == ClientSettings(master="10.0.0.1:50051", segment_size=4 << 30, tenant="team-a")
    assert load_mooncake_config(file) == settings
    assert not caplog.records


def test_nothing_set_gives_the_defaults() -> None:
    assert client_settings({}, "x") == ClientSettings()
    assert client_settings({"tenant_id": ""}, "x") == ClientSettings()


def test_a_standalone_store_client_contributes_nothing() -> None:
    assert client_settings(TYPICAL | {"mode": "standalone-store"}, "x").segment_size == 0


def test_our_own_keys_win() -> None:
    settings = client_settings(TYPICAL | {"master": "b:1", "lanes": 4, "segment_size": "1MiB"}, "x")
    assert (settings.master, settings.lanes, settings.segment_size) == ("b:1", 4, 1 << 20)
    assert client_settings({"master_server_address": "etcd://a:1;b:2", "master": "c:3"}, "x").master == "c:3"


def test_an_unknown_key_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    table = {"master_server_adress": "a:1", "custom": {}}
    with caplog.at_level(logging.WARNING):
        client_settings(table, "unknown-key.json")
        client_settings(table, "unknown-key.json")
    messages = sorted(record.getMessage() for record in caplog.records)
    assert len(messages) == 2
    assert "custom" in messages[0]
    assert "did you mean master_server_address?" in messages[1]


@pytest.mark.parametrize(
    ("text", "address"), [("a:1", "a:1"), ("10.0.0.1", "10.0.0.1:50051"), ("[::1]:70", "[::1]:70")]
)
def test_master_addresses(text: str, address: str) -> None:
    assert parse_master_address(text, "x") == address


def test_several_masters_and_the_etcd_that_knows_them() -> None:
    read = client_settings({"master_server_address": "etcd://a:2379; b:2379"}, "x").master
    assert read == "etcd://a:2379;b:2379"
    assert MasterNames.parse(read) == MasterNames(etcd=("a:2379", "b:2379"), cluster="default")
    assert client_settings({"master_server_address": "a, b:7"}, "x").master == "a:50051,b:7"


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("master_server_address", "a:b", "host:port"),
        ("master_server_address", "a:70000", "host:port"),
        ("master_server_address", "redis://a:1", "host:port"),
        ("master_server_address", "etcd://", "etcd://host:port"),
        ("master_server_address", 7, "text"),
        ("master_server_address", "", "text"),
        ("global_segment_size", "4 geese", "bytes, or text"),
        ("global_segment_size", -1, "bytes, or text"),
        ("global_segment_size", None, "bytes, or text"),
        ("local_buffer_size", [], "bytes, or text"),
        ("mode", "both", "embedded, standalone-store"),
        ("protocol", "smoke", "tcp, rdma"),
        ("lanes", 99, "less than or equal to 16"),
    ],
)
def test_a_bad_value_is_named(key: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client_settings({key: value}, "/etc/mooncake.json")
    assert "/etc/mooncake.json" in str(caught.value)
    assert key in str(caught.value)
    assert allowed in str(caught.value)


def test_no_file_named() -> None:
    with pytest.raises(ConfigError, match="MOONCAKE_CONFIG_PATH: isn't set"):
        load_mooncake_config(environment={})
