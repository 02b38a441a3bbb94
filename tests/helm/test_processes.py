"""Servers that start with exactly the settings and secrets that the chart writes, and what `helm test` says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from support.chart import Chart, Manifests
from support.etcd_server import EtcdServer
from support.ports import free_pair, free_ports
from support.processes import ServerProcess

KINDS = ("master", "node", "client")


class Configured(ServerProcess):
    """`moonpool master` or `moonpool node` with a settings file and nothing else, as a pod starts it."""

    def __init__(self, kind: str, file: Path) -> None:
        super().__init__(["-m", "moonpool.store_client.cli.main", kind, "--config", str(file)])


def lay_out(manifests: Manifests, folder: Path, ports: dict[str, int]) -> dict[str, Path]:
    """The files of ConfigMaps and Secrets as the pods see them, with these folders for theirs and ports for theirs."""
    for name in ("segments", "run", "state", "tokens", "events"):
        (folder / name).mkdir()
    public, secret_key = (key.decode() for key in zmq.curve_keypair())
    for name, text in (("events.key", secret_key), ("events.clients", public)):  # of a Secret of the user's
        file = folder / "events" / name
        file.write_text(text)
        file.chmod(0o600)
    for secret in manifests.all("Secret"):
        for name, text in secret["stringData"].items():
            file = folder / "tokens" / name
            file.write_text(text)
            file.chmod(0o600)
    places = {"/etc/moonpool/tokens": "tokens", "/segments": "segments", "/run/moonpool": "run"}
    places |= {"/var/lib/moonpool": "state", "/etc/moonpool/events": "events"}
    files = {}
    for kind in KINDS:
        (text,) = manifests.of("ConfigMap", kind)["data"].values()
        for place, name in places.items():
            text = text.replace(f'"{place}', f'"{folder / name}')
        settings = json.loads(text)
        own = settings.get(kind, settings)
        own |= {name: 0 for name in ("port", "data_port", "metrics_port") if name in own}
        if kind == "master":
            own["port"], own["http_port"] = ports["rpc"], ports["http"]
        if "events_port" in own:
            own["events_port"] = ports["events"]
        if "size" in own:
            own["size"], own["advertise"] = "64Mi", "127.0.0.1"
        for name in ("master", "master_server_address"):
            if name in own:
                own[name] = f"127.0.0.1:{ports['rpc']}"
        files[kind] = folder / f"{kind}.json"
        files[kind].write_text(json.dumps(settings))
    return files


def server_ports() -> dict[str, int]:
    return dict(zip(("rpc", "http"), free_ports(2), strict=True)) | {"events": free_pair()}


def helm_test(manifests: Manifests, client: Path) -> None:
    """Runs what `helm test` runs. Raises AssertionError."""
    (container,) = manifests.of("Pod", "test")["spec"]["containers"]
    done = subprocess.run(
        [sys.executable, *container["command"][1:]],
        env=os.environ | {"MOONCAKE_CONFIG_PATH": str(client), "TIMEOUT_S": "100"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "put, get and remove of 1 MiB: good\n"), done.stderr


@pytest.mark.parametrize("name", ["default", "insecure"])
def test_servers_run_on_what_the_chart_wrote(chart: Chart, tmp_path: Path, name: str) -> None:
    manifests = chart.render({} if name == "default" else {"access": {"insecure": True}})
    ports = server_ports()
    files = lay_out(manifests, tmp_path, ports)
    with Configured("master", files["master"]), Configured("node", files["node"]):
        helm_test(manifests, files["client"])
        for what in ("live", "ready"):
            url = f"http://127.0.0.1:{ports['http']}/api/v1/health/{what}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.status == 200


@pytest.mark.etcd
def test_several_masters_run_on_what_the_chart_wrote(chart: Chart, tmp_path: Path) -> None:
    """Two of them share the shards; when one leaves, the other has all."""
    manifests = chart.render("ha-etcd")
    places = {name: tmp_path / name for name in ("first", "second")}
    ports = {name: server_ports() for name in places}
    files = {}
    with EtcdServer(tmp_path / "etcd") as etcd, ExitStack() as servers:
        masters = {}
        for name, folder in places.items():
            folder.mkdir()
            files[name] = lay_out(manifests, folder, ports[name])
            settings = json.loads(files[name]["master"].read_text())
            members = settings["master"]["store"].removeprefix("etcd://").split(";")
            assert [member.rpartition(":")[2] for member in members] == ["2379"] * 3
            settings["master"]["store"] = f"etcd://{etcd.endpoint}"
            settings["master"]["advertise"] = f"127.0.0.1:{ports[name]['rpc']}"
            files[name]["master"].write_text(json.dumps(settings))
            masters[name] = servers.enter_context(Configured("master", files[name]["master"]))
        servers.enter_context(Configured("node", files["first"]["node"]))
        helm_test(manifests, files["first"]["client"])
        assert masters["second"].stop() == 0
        helm_test(manifests, files["first"]["client"])
