"""Settings: precedence, origins, and errors that name source, field, value and what is allowed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from moonpool.schemas.config import ClientSettings, ConnectorSettings, MasterSettings, NodeSettings
from moonpool.schemas.config_load import FILE_BYTES_MAX, KINDS, OTHER_VARIABLES, load
from moonpool.schemas.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    file = write(
        tmp_path / "pool.toml", 'size = "1GB"\nname = "file"\nhost = "10.0.0.1"\nrun_dir = "/run/a"\n'
    )
    loaded = load(
        NodeSettings,
        file=file,
        environment={
            "MOONPOOL_NAME": "environment",
            "MOONPOOL_HOST": "10.0.0.2",
            "MOONPOOL_NODE_HOST": "10.0.0.3",
        },
        flags={"name": "flag", "size": None},
    )
    assert loaded.settings.size == 1 << 30
    assert loaded.settings.name == "flag"
    assert loaded.settings.host == "10.0.0.3"
    assert loaded.origins["size"] == str(file)
    assert loaded.origins["name"] == "command line"
    assert loaded.origins["host"] == "MOONPOOL_NODE_HOST"
    assert loaded.origins["prefault"] == "default"
    assert loaded.origins.keys() == NodeSettings.model_fields.keys()


def test_one_file_serves_every_kind(tmp_path: Path) -> None:
    file = write(
        tmp_path / "pool.toml",
        'port = 1\nsize = "2GiB"\n[master]\nport = 2\n[node]\nmaster = "a:2"\nsize = 5\n',
    )
    assert load(MasterSettings, file=file).settings.port == 2
    node = load(NodeSettings, file=file).settings
    assert (node.port, node.size, node.master) == (1, 5, "a:2")
    as_json = write(tmp_path / "pool.json", json.dumps({"master": "b:3", "lanes": 4}))
    assert load(ClientSettings, file=as_json).settings.lanes == 4
    assert load(NodeSettings, file=as_json).settings.master == "b:3"


@pytest.mark.parametrize("kind", list(KINDS))
def test_defaults_are_valid_and_frozen(kind: str) -> None:
    settings = load(KINDS[kind]).settings
    assert KINDS[kind].model_validate(settings.model_dump()) == settings
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings, next(iter(KINDS[kind].model_fields)), None)


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ('{"sise": 1}', "sise", "did you mean size?"),
        ('{"node": {"sizes": 1}}', "sizes", "did you mean size?"),
        ('{"connector": {"min_hit_token": 1}}', "min_hit_token", "did you mean min_hit_tokens?"),
        ('{"port": -1}', "port", "allowed: greater than or equal to 0"),
        ('{"size": "lots"}', "size", "'lots' is not a size"),
        ("[1]", "file", "a table is expected"),
        ("{", "file", "isn't JSON (the name of a TOML file ends in .toml)"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, field: str, hint: str) -> None:
    file = write(tmp_path / "pool.json", text)
    with pytest.raises(ConfigError) as caught:
        load(NodeSettings, file=file)
    assert str(file) in str(caught.value)
    assert caught.value.facts["field"] == field
    assert hint in str(caught.value)


def test_files_that_are_no_settings_at_all(tmp_path: Path) -> None:
    for name, data, problem in [
        ("a.json", b"\xff\xfe", "isn't JSON"),
        ("b.toml", b"= 1", "isn't TOML"),
        ("c.json", b" " * (FILE_BYTES_MAX + 1), "is over"),
        ("d.json", b"[" * 100_000, "isn't JSON"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError, match=problem):
            load(NodeSettings, file=tmp_path / name)
    with pytest.raises(ConfigError, match="No such file"):
        load(NodeSettings, file=tmp_path / "none.json")


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("MOONPOOL_NODE_SISE", "1", "did you mean MOONPOOL_NODE_SIZE?"),
        ("MOONPOOL_MASTERS", "a:1", "did you mean MOONPOOL_MASTER?"),
        ("MOONPOOL_PORT", "many", "MOONPOOL_PORT: port: is 'many'; allowed: a valid integer"),
        ("MOONPOOL_LANES_MAX", "0", "greater than or equal to 1"),
    ],
)
def test_a_bad_variable_is_refused_with_its_name(variable: str, value: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(NodeSettings, environment={variable: value, "PATH": "/bin"})
    assert hint in str(caught.value)
    assert variable in str(caught.value)


def test_variables_of_other_owners_are_left_alone() -> None:
    environment = {
        "MOONPOOL_SOAK": "1",
        "MOONPOOL_PORT": "tcp://10.0.0.1:50051",
        "MOONPOOL_PORT_50051_TCP_ADDR": "10.0.0.1",
        "MOONPOOL_SERVICE_HOST": "10.0.0.1",
        "MOONPOOL_MASTER_SERVICE_PORT_RPC": "50051",
        "MOONPOOL_LOAD_THREADS": "3",
    }
    assert load(NodeSettings, environment=environment).settings == NodeSettings()
    assert load(ConnectorSettings, environment=environment).settings.load_threads == 3


def test_every_variable_that_is_no_setting_is_allowed_and_told() -> None:
    root = Path(__file__).parents[2]
    read = {
        name
        for folder in ("schemas", "master", "store_client", "connector")
        for path in (root / folder).rglob("*.py")
        for name in re.findall(r'environ(?:\.get\(|\[)"(MOONPOOL_\w+)"', path.read_text())
    }
    assert "MOONPOOL_NATIVE" in read
    assert read <= OTHER_VARIABLES
    page = (root / "docs/settings.md").read_text()
    assert all(f"`{name}`" in page for name in OTHER_VARIABLES)
    load(ClientSettings, environment=dict.fromkeys(OTHER_VARIABLES, "0"))


def test_flags_are_checked_as_well() -> None:
    with pytest.raises(ConfigError, match="command line: high_watermark: is 2"):
        load(NodeSettings, flags={"high_watermark": 2})
    with pytest.raises(ConfigError, match="did you mean size"):
        load(NodeSettings, flags={"sizes": 2})


def test_a_choice_names_the_choices_and_a_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="allowed: auto, shm, tcp"):
        load(ClientSettings, flags={"transport": "pigeon"})
    with pytest.raises(ConfigError) as caught:
        load(ClientSettings, flags={"token": 12345})
    assert "12345" not in str(caught.value)
    assert "12345" not in repr(load(ClientSettings, flags={"token": "12345"}).settings)
