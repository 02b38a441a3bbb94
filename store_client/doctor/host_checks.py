"""Facts of a host in, findings out."""

from __future__ import annotations

import re

from moonpool.schemas.config import NodeSettings
from moonpool.schemas.units import format_size
from moonpool.store_client.doctor.findings import Finding, broken, ok, warning
from moonpool.store_client.doctor.host_facts import Device, HostFacts

REST_MIB = 1024
"""Beside the segment: its headers, and what else lies in that folder."""

COLLAPSES = (6, 1)
"""Linux from here on makes huge pages of any shared memory when it is asked to (MADV_COLLAPSE)."""

SEEDED = (0, 29)
"""vLLM from here on hashes blocks with a seed that doesn't change."""


def check_host(facts: HostFacts, node: NodeSettings) -> list[Finding]:
    """All checks of this host."""
    return [
        check_room(facts, node),
        check_memory(facts, node),
        check_huge_pages(facts, node),
        check_memlock(facts, node),
        *check_nics(facts, node),
        check_peermem(facts, node),
        check_hash_seed(facts),
    ]


def check_room(facts: HostFacts, node: NodeSettings) -> Finding:
    """Room for the segment."""
    size, folder = format_size(node.size), facts.segment_dir
    if facts.room_bytes is None:
        return broken("shm-size", f"{folder} isn't there", "mount a tmpfs there, or set segment_dir")
    room, free = format_size(facts.room_bytes), format_size(facts.free_bytes)
    if node.size > facts.room_bytes:
        return broken(
            "shm-size",
            f"the segment is to have {size}, {folder} has {room} in all",
            f"mount -o remount,size={(node.size >> 20) + REST_MIB}m {folder}; in a container: --shm-size, or an emptyDir of medium Memory; or set a smaller size",
        )
    if node.size > facts.free_bytes + facts.own_bytes:
        return broken(
            "shm-size",
            f"the segment is to have {size}, {folder} has {free} left of {room}",
            f"look for files that nobody needs in {folder}, moonpool-*.segment of other nodes too",
        )
    return ok("shm-size", f"{folder} has room for a segment of {size} ({free} free of {room})")


def check_memory(facts: HostFacts, node: NodeSettings) -> Finding:
    """tmpfs is memory: room there is only a limit."""
    available = facts.available_bytes
    if available is None:
        return ok("memory", "the kernel doesn't say how much memory is free")
    if facts.hugetlbfs or node.size <= available + facts.own_bytes:
        return ok("memory", f"{format_size(available)} of memory are available")
    return broken(
        "memory",
        f"the segment is to have {format_size(node.size)}, and {format_size(available)} of memory are available",
        "set a smaller size, or free memory: the kernel would end processes instead",
    )


def check_huge_pages(facts: HostFacts, node: NodeSettings) -> Finding:
    """Asked for, and to be had?"""
    if facts.hugetlbfs:
        if facts.huge_free_bytes + facts.own_bytes >= node.size:
            return ok("huge-pages", f"{format_size(facts.huge_free_bytes)} of huge pages are free")
        return broken(
            "huge-pages",
            f"{facts.segment_dir} is hugetlbfs, and {format_size(facts.huge_free_bytes)} of huge pages are free "
            f"for a segment of {format_size(node.size)}",
            "raise vm.nr_hugepages (sysctl), or in Kubernetes the node's hugepages",
        )
    if not node.huge_pages:
        return ok("huge-pages", "not asked for (huge_pages)")
    release = ".".join(map(str, facts.kernel))
    if facts.shmem_huge in ("", "deny"):
        return warning(
            "huge-pages",
            f"this kernel lays no shared memory into huge pages ({facts.shmem_huge or 'it knows none'})",
            'echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled ends "deny"; or huge_pages = false',
        )
    if facts.kernel < COLLAPSES and facts.mount_huge not in ("advise", "within_size", "always"):
        return warning(
            "huge-pages",
            f"Linux {release} gives huge pages only where the mount says so, and {facts.segment_dir}'s doesn't",
            f"mount -o remount,huge=advise {facts.segment_dir}; or huge_pages = false",
        )
    return ok(
        "huge-pages", f"Linux {release} lays the segment into huge pages, as far as free memory is whole"
    )


def check_memlock(facts: HostFacts, node: NodeSettings) -> Finding:
    """RDMA locks all that it registers."""
    limit = facts.memlock_bytes
    shown = "unlimited" if limit < 0 else format_size(limit)
    if limit < 0 or limit >= node.size:
        return ok("memlock", f"locked memory: {shown}")
    what = f"locked memory is limited to {shown}, the segment is to have {format_size(node.size)}"
    advice = "ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; IPC_LOCK for a container"
    if node.engine_protocol == "rdma":
        return broken("memlock", f"{what}: RDMA can't register it", advice)
    if any(nic.rdma for nic in facts.nics):
        return warning("memlock", f"{what}: too little once RDMA is used", advice)
    return ok("memlock", f"locked memory: {shown}; enough without RDMA")


def check_nics(facts: HostFacts, node: NodeSettings) -> list[Finding]:
    """A card beside each GPU, and beside the segment."""
    nics = [nic for nic in facts.nics if nic.up]
    if any(nic.rdma for nic in nics):
        nics = [nic for nic in nics if nic.rdma]
    near = {nic.numa for nic in nics}
    if not nics or near == {-1}:
        return [ok("nic-numa", "no network card says which NUMA node it is on")]
    names = ", ".join(f"{nic.name} on node {nic.numa}" for nic in nics)
    found = [
        warning(
            "nic-numa",
            f"GPU {gpu.name} is on NUMA node {gpu.numa}, and no network card that is up is ({names})",
            "traffic of this GPU crosses the sockets: bring a card there up, name cards in engine_devices, or use "
            "GPUs beside the cards",
        )
        for gpu in facts.gpus
        if _far(gpu, near)
    ]
    if node.numa_node >= 0 and node.numa_node not in near and -1 not in near:
        found.append(
            warning(
                "nic-numa",
                f"the segment is bound to NUMA node {node.numa_node}, and no network card that is up is there ({names})",
                "set numa_node to a card's",
            )
        )
    return found or [ok("nic-numa", f"cards: {names}; GPUs: {len(facts.gpus)}")]


def _far(gpu: Device, near: set[int]) -> bool:
    return gpu.numa >= 0 and gpu.numa not in near and -1 not in near


def check_peermem(facts: HostFacts, node: NodeSettings) -> Finding:
    """Only RDMA into a GPU's memory needs it."""
    rdma = any(nic.rdma for nic in facts.nics)
    if facts.peermem:
        return ok("peermem", "nvidia_peermem is loaded")
    if not facts.gpus or not rdma:
        return ok("peermem", "not needed: there are not both a GPU and an RDMA device")
    return warning(
        "peermem",
        "there are a GPU and an RDMA device, and nvidia_peermem isn't loaded",
        "modprobe nvidia-peermem; without it transfers go through the host's memory",
    )


def check_hash_seed(facts: HostFacts) -> Finding:
    """Engines whose hashes differ share nothing."""
    if facts.vllm is None:
        return ok("hash-seed", "vLLM isn't installed here")
    found = re.match(r"(\d+)\.(\d+)", facts.vllm)
    if found is None or (int(found[1]), int(found[2])) >= SEEDED:
        return ok("hash-seed", f"vLLM {facts.vllm} needs no PYTHONHASHSEED")
    if facts.hash_seed not in (None, "", "random"):
        return ok("hash-seed", f"vLLM {facts.vllm}, PYTHONHASHSEED={facts.hash_seed}: equal on all engines?")
    return broken(
        "hash-seed",
        f"vLLM {facts.vllm} draws a random seed for its block hashes: no engine finds what another saved",
        "set PYTHONHASHSEED=0 for every engine, or use vLLM 0.29 or newer",
    )
