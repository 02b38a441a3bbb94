"""`moonpool serve` and what is asked of it: real processes on free ports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_ports
from support.waiting import wait_until
from typer.testing import CliRunner

from moonpool.schemas.config import ClientSettings, MasterSettings, NodeSettings
from moonpool.store_client import StoreClient
from moonpool.store_client.cli import serve as serving
from moonpool.store_client.cli.main import app
from moonpool.store_client.cli.options import by_kind

runner = CliRunner()
MAIN = [sys.executable, "-m", "moonpool.store_client.cli.main"]


class Serve:
    """A running `moonpool serve --json`."""

    def __init__(self, folder: Path) -> None:
        flags = {
            "--port": "0",
            "--http-port": str(free_ports(1)[0]),
            "--size": "64MB",
            "--name": f"test-{os.getpid()}",
            "--segment-dir": str(folder),
        }
        words = [word for flag in flags.items() for word in flag]
        self.log = folder / "log"
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*MAIN, "serve", "--json", *words],
                stdout=subprocess.PIPE,
                stderr=stream,
                env=os.environ
                | {"MOONPOOL_RUN_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state")},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.stdout.close()
        assert line, self.log.read_text()
        self.where: dict[str, Any] = json.loads(line)
        self.master: str = self.where["master"]

    def children(self) -> list[int]:
        """Pids of master and node, in this order."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return sorted(int(pid) for pid in text.split())

    def end(self, number: int) -> int:
        """Sends a signal to serve and returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(120)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    running = Serve(tmp_path)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.end(signal.SIGTERM)
        assert running.process.stdout is not None
        running.process.stdout.close()


def test_it_serves_and_status_shows_it(serve: Serve) -> None:
    with StoreClient(ClientSettings(master=serve.master, timeout_s=20)) as client:
        client.put("greeting", b"hello")
        assert client.get("greeting") == b"hello"
        assert client.batch_is_exist(["greeting", "nothing"]) == [True, False]
    shown = runner.invoke(app, ["status", "--master", serve.master, "--json"])
    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    (node,) = found["nodes"]
    assert (node["name"], node["state"]) == (serve.where["node"], "live")
    assert 0 < node["free_bytes"] <= node["capacity_bytes"] == serve.where["size_bytes"]
    assert found["counters"]
    with urllib.request.urlopen(f"{serve.where['http']}/api/v1/nodes", timeout=20) as answer:
        assert json.load(answer)["items"][0]["node"] == serve.where["node"]
    table = runner.invoke(app, ["status", "--master", serve.master]).stdout
    assert serve.where["node"] in table
    assert "live" in table


def test_the_readmes_example_runs(serve: Serve) -> None:
    readme = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert "127.0.0.1:50051" in example
    subprocess.run(
        [sys.executable, "-c", example.replace("127.0.0.1:50051", serve.master)], check=True, timeout=120
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_both(serve: Serve, number: int) -> None:
    children = serve.children()
    assert len(children) == 2
    assert serve.end(number) == 0, serve.log.read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.parametrize(("index", "name", "other"), [(0, "master", "node"), (1, "node", "master")])
def test_if_one_ends_the_other_is_stopped(serve: Serve, index: int, name: str, other: str) -> None:
    children = serve.children()
    os.kill(children[index], signal.SIGKILL)
    assert serve.process.wait(120) == 1
    said = serve.log.read_text()
    assert f"the {name} ended by itself with exit code -9; stopping the {other}" in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_status_of_nobody_says_what_to_do() -> None:
    done = subprocess.run(
        [*MAIN, "status", "--master", "127.0.0.1:1"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3
    assert "moonpool serve" in done.stderr
    assert "Traceback" not in done.stderr


def serve_refused(*words: str) -> str:
    """stderr of a serve that ends with exit code 2 before it starts anything."""
    done = subprocess.run([*MAIN, "serve", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def test_a_taken_port_is_refused_and_its_pool_not_joined(serve: Serve) -> None:
    port = serve.master.rpartition(":")[2]
    said = serve_refused("--port", port, "--name", f"other-{os.getpid()}", "--size", "64MB")
    assert f"cannot listen on {serve.master}: Address already in use; --port names another" in said
    shown = runner.invoke(app, ["status", "--master", serve.master, "--json"])
    assert [node["name"] for node in json.loads(shown.stdout)["nodes"]] == [serve.where["node"]]


def test_a_host_that_is_not_ours_is_named() -> None:
    said = serve_refused("--host", "192.0.2.1", "--port", "0")
    assert "host: cannot listen on 192.0.2.1:0: Cannot assign requested address" in said


def test_its_last_words_say_where_the_memory_stays(serve: Serve) -> None:
    assert serve.end(signal.SIGTERM) == 0
    assert f"the blocks stay in {serve.where['segment']} " in serve.log.read_text()


def test_a_size_that_cannot_be_is_refused_before_anything_starts() -> None:
    said = serve_refused("--size", "0", "--port", "0")
    assert "size" in said
    assert "master listening" not in said


def test_a_port_lost_to_another_pool_is_not_joined(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    # Somebody else takes the port between our look at it and our master's start.
    monkeypatch.setattr(serving, "port_to_serve", lambda host, port, flag="port": port)
    host, _, port = serve.master.rpartition(":")
    plan = serving.Plan(
        MasterSettings(host=host, port=int(port)),
        NodeSettings(name=f"other-{os.getpid()}", size=64 << 20),
        verbose=False,
    )
    assert serving.run_serve(plan, as_json=True) == 1
    shown = runner.invoke(app, ["status", "--master", serve.master, "--json"])
    assert [node["name"] for node in json.loads(shown.stdout)["nodes"]] == [serve.where["node"]]


def test_a_master_writes_where_it_listens(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    words = [*MAIN, "master", "--port", "0", "--ready-file", str(ready)]
    with subprocess.Popen(words, stderr=subprocess.PIPE) as process:
        try:
            wait_until(ready.exists)
            assert runner.invoke(app, ["status", "--master", ready.read_text(), "--json"]).exit_code == 0
        finally:
            process.terminate()


def test_settings_go_to_whom_they_are_for() -> None:
    kinds = {"master": MasterSettings, "node": NodeSettings}
    given = ["heartbeat-s=2", "lanes_max=3", "tracing=true", "node.tls_cert=a", "nobody=1"]
    assert by_kind(given, kinds) == {
        "master": ["heartbeat-s=2", "tracing=true", "nobody=1"],
        "node": ["lanes_max=3", "tracing=true", "tls_cert=a", "nobody=1"],
    }
