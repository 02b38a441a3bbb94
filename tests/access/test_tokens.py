"""The tokens file: what it may hold, who may read it, and its rotation."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from moonpool.schemas.access import Identity, Role, Tokens, token_digest
from moonpool.schemas.errors import ConfigError
from moonpool.store_client.rpc import tokens
from moonpool.store_client.rpc.tokens import TokenFile

CLEAR = "a-token-of-the-red-tenant"
HASHED = "another-token, kept as a digest"
ENTRIES = [
    {"name": "red engines", "token": CLEAR, "tenant": "red", "role": "client"},
    {"token_sha256": hashlib.sha256(HASHED.encode()).hexdigest(), "role": "admin"},
]


def write(path: Path, document: object, mode: int = 0o600) -> Path:
    """The way rotation should be done: a new file in the place of the old one."""
    fresh = path.with_name("fresh")
    fresh.write_text(document if isinstance(document, str) else json.dumps(document))
    fresh.chmod(mode)
    return fresh.rename(path)


@pytest.fixture(autouse=True)
def _look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LOOK_EVERY_S", 0.0)


def test_clear_and_hashed_tokens_stand_for_identities(tmp_path: Path) -> None:
    file = TokenFile(str(write(tmp_path / "tokens.json", ENTRIES)))
    assert file.authenticate(CLEAR) == Identity("red", Role.CLIENT, "red engines")
    assert file.authenticate(HASHED) == Identity("default", Role.ADMIN, "token 2")
    for wrong in ("", CLEAR[:-1], CLEAR + "x", hashlib.sha256(HASHED.encode()).hexdigest(), "\ud800"):
        assert file.authenticate(wrong) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokens.toml", f'[[tokens]]\ntoken = "{CLEAR}"\ntenant = "red"\nrole = "client"\n'),
        ("tokens.yaml", f"tokens:\n- token: {CLEAR}\n  tenant: red\n  role: client\n"),
        ("tokens", json.dumps({"tokens": [{"token": CLEAR, "tenant": "red", "role": "client"}]})),
    ],
)
def test_it_may_be_json_toml_or_yaml(tmp_path: Path, name: str, text: str) -> None:
    file = TokenFile(str(write(tmp_path / name, text)))
    assert file.authenticate(CLEAR) == Identity("red", Role.CLIENT, "token 1")


@pytest.mark.parametrize(
    "document",
    [
        "not json, but " + CLEAR,
        {},
        {"tokens": []},
        [CLEAR],
        [{"token": CLEAR}],
        [{"role": "client"}],
        [{"token": CLEAR, "role": "root"}],
        [{"token": CLEAR, "role": "client", "token_sha256": "0" * 64}],
        [{"token": "short", "role": "client"}],
        [{"token": CLEAR * 100, "role": "client"}],
        [{"token_sha256": CLEAR, "role": "client"}],
        [{"token": CLEAR, "role": "client", "tennant": "x"}],
        [{"token": CLEAR, "role": "client", "tenant": ""}],
        [{"token": CLEAR, "role": "client", "tenant": 7}],
        [{"token": CLEAR, "role": "client"}, {"token": CLEAR, "role": "admin"}],
        [{"token": f"{CLEAR}-{n}", "role": "client"} for n in range(1025)],
    ],
)
def test_a_bad_file_is_an_error_that_shows_no_token(tmp_path: Path, document: object) -> None:
    path = write(tmp_path / "tokens.json", document)
    with pytest.raises(ConfigError, match=r"tokens\.json") as caught:
        TokenFile(str(path))
    assert CLEAR not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "tokens.json", ENTRIES, mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}"):
        TokenFile(str(path))


def test_the_group_may_read_a_file_of_root_for_a_process_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tokens.json", ENTRIES, 0o440)
    if path.stat().st_uid:
        pytest.skip("only root can make a file of root")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert TokenFile(str(path)).authenticate(CLEAR)
    path.chmod(0o444)
    with pytest.raises(ConfigError):
        TokenFile(str(path))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        TokenFile(str(tmp_path / "none.json"))


def test_rotation_is_taken_over_without_a_restart(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.json", ENTRIES)
    file = TokenFile(str(path))
    before = file.version
    write(path, [{"token": "the-red-token-of-tomorrow", "tenant": "red", "role": "client"}])
    assert file.authenticate("the-red-token-of-tomorrow") == Identity("red", Role.CLIENT, "token 1")
    assert file.authenticate(CLEAR) is None
    assert file.version == before + 1


@pytest.mark.parametrize("spoil", ["not json", None, ENTRIES])
def test_a_bad_change_leaves_the_tokens_before_in_force_and_says_so_once(
    tmp_path: Path, spoil: object, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "tokens.json", ENTRIES)
    file = TokenFile(str(path))
    if spoil is None:
        path.unlink()
    else:
        write(path, spoil, 0o644)
    for _ in range(3):
        assert file.authenticate(CLEAR)
    assert len(caplog.records) == 1
    assert CLEAR not in caplog.text
    write(path, ENTRIES[1:])
    assert file.authenticate(CLEAR) is None


def test_every_entry_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def count(one: bytes, other: bytes) -> bool:
        nonlocal compared
        compared += 1
        return one == other

    entries = {token_digest(str(n)): Identity("t", Role.CLIENT, str(n)) for n in range(10)}
    held = Tokens(entries)
    monkeypatch.setattr("hmac.compare_digest", count)
    for n in (0, 9, 99):
        compared = 0
        found = held.find(token_digest(str(n)))
        assert (found.name if found else "99") == str(n)
        assert compared == 10
