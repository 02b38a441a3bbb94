"""A server that other hosts reach, and that lets everybody in, refuses to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.guarded import Certificates
from support.processes import MasterProcess

from moonpool.master.server import MasterServer
from moonpool.schemas.config import ClientSettings, MasterSettings, NodeSettings
from moonpool.schemas.errors import ConfigError
from moonpool.store_client.cli.serve import child_environment, command
from moonpool.store_client.rpc.access import check_bare, check_guarded, is_loopback
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.rpc.tls import ServerTls

OPEN = ("0.0.0.0", "::", "", "10.0.0.7", "192.0.2.1")


@pytest.mark.parametrize("host", OPEN)
def test_an_open_server_is_refused_with_what_to_do(host: str) -> None:
    for settings in (MasterSettings(host=host), NodeSettings(host=host)):
        with pytest.raises(ConfigError, match=r"tokens_file.*tls_ca.*insecure = true"):
            check_guarded(host, settings)
        check_guarded("127.0.0.1", settings)


def test_what_guards_it() -> None:
    check_guarded("0.0.0.0", MasterSettings(tokens_file="/some/file"))
    check_guarded("0.0.0.0", MasterSettings(tls_cert="cert", tls_key="key", tls_ca="ca"))
    check_guarded("0.0.0.0", MasterSettings(insecure=True))
    with pytest.raises(ConfigError):  # secret, and open to everybody
        check_guarded("0.0.0.0", MasterSettings(tls_cert="cert", tls_key="key"))
    with pytest.raises(ConfigError, match="metrics_host"):
        check_guarded("0.0.0.0", NodeSettings(), "metrics_host")


def test_ports_that_know_no_tokens() -> None:
    mutual = {"tls_cert": "cert", "tls_key": "key", "tls_ca": "ca"}
    with pytest.raises(ConfigError, match="events_host"):
        check_bare("0.0.0.0", MasterSettings())
    check_bare("127.0.0.1", MasterSettings())
    check_bare("127.0.0.1", MasterSettings(tls_cert="cert", tls_key="key"))
    for guards in (
        {"tokens_file": "/some/file"},
        mutual,
    ):  # on loopback too: they hold for this host's processes
        for host in ("127.0.0.1", "0.0.0.0"):
            with pytest.raises(ConfigError, match=r"tenants.*insecure = true"):
                check_bare(host, MasterSettings(**guards))
            check_bare(host, MasterSettings(insecure=True, **guards))


def test_a_master_with_tokens_publishes_no_events() -> None:
    with pytest.raises(ConfigError, match="events_host"):
        MasterServer(MasterSettings(tokens_file="/some/file", events_port=5557))


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, (*OPEN, "no.such.name.invalid")))


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "moonpool.master", "--host", "0.0.0.0", "--port", "0"],
        ["-m", "moonpool.store_client.node", "--host", "0.0.0.0", "--size", "16MB"],
        ["-m", "moonpool.store_client.cli.main", "master", "--host", "0.0.0.0", "--port", "0"],
        [
            "-m",
            "moonpool.store_client.cli.main",
            "serve",
            "--host",
            "0.0.0.0",
            "--port",
            "0",
            "--size",
            "16MB",
        ],
    ],
    ids=["master", "node", "cli-master", "serve"],
)
def test_the_programs_refuse_to_start(words: list[str], tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "MOONPOOL_SEGMENT_DIR": str(tmp_path)}
    if "moonpool.store_client.node" in words:
        words = [*words, "--segment-dir", str(tmp_path), "--run-dir", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode in (1, 2)
    assert "insecure = true" in ended.stderr and "Traceback" not in ended.stderr


def test_insecure_starts() -> None:
    with MasterProcess(["--insecure", "true", "--host", "0.0.0.0"]) as master:
        assert master.alive


def test_settings_that_contradict_each_other(certificates: Certificates, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-in-a-file\n")
    with pytest.raises(ConfigError, match="token_file"):
        Credentials.of(ClientSettings(token="a" * 20, token_file=str(token)))
    with pytest.raises(ConfigError, match="without tls_ca"):
        Credentials.of(NodeSettings(tls_cert=certificates.cert, tls_key=certificates.key))
    with pytest.raises(ConfigError, match="tls_key"):
        ServerTls.of(certificates.cert, "", "")
    with pytest.raises(ConfigError, match="without tls_cert"):
        ServerTls.of("", certificates.key, "")
    with pytest.raises(ConfigError, match="no pair"):
        ServerTls.of(certificates.ca, certificates.key, "")
    open_key = tmp_path / "open.pem"
    open_key.write_bytes(Path(certificates.key).read_bytes())
    open_key.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        ServerTls.of(certificates.cert, str(open_key), "")
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        Credentials.of(ClientSettings(token_file=str(token)))


def test_serve_hands_no_token_to_a_command_line() -> None:
    node = NodeSettings(token="a-token-of-a-node-1", tokens_file="/tokens.json")
    words = command("node", node, verbose=False)
    assert "tokens_file=/tokens.json" in words
    assert not any(node.token in word for word in words)
    assert child_environment(node)["MOONPOOL_TOKEN"] == node.token
    assert "MOONPOOL_TOKEN" not in child_environment(MasterSettings())


def test_no_repr_shows_a_token() -> None:
    for settings in (NodeSettings(token="a-token-of-a-node-1"), ClientSettings(token="a-token-of-a-node-1")):
        assert "a-token" not in repr(settings)
        assert "a-token" not in repr(Credentials.of(settings))
