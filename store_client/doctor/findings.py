"""What the doctor says: a finding a check, and the table of all checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it works, and could be better or safer
    BROKEN = "broken"  # something won't start, won't be reached, or will never hit


@dataclass(frozen=True, slots=True)
class Finding:
    """`check`: an id in CHECKS. `advice`: what to do; empty where all is well."""

    check: str
    level: Level
    what: str
    advice: str = ""


CHECKS: dict[str, str] = {
    "config": "settings files, `MOONPOOL_*` variables, `MOONCAKE_CONFIG_PATH`: unknown keys, values that aren't allowed",
    "shm-size": "room for the node's segment where it is to lie",
    "memory": "free memory of the host for the segment",
    "huge-pages": "huge pages for the segment: does the kernel give them?",
    "memlock": "the limit of locked memory, which RDMA registers the segment under",
    "ports": "the ports of master and node are free, or a server of ours has them",
    "nic-numa": "an RDMA device, or else a network card, on the NUMA node of each GPU and of the segment",
    "peermem": "`nvidia_peermem`, without which RDMA can't reach a GPU's memory",
    "hash-seed": "`PYTHONHASHSEED`, where vLLM is older than 0.29 and draws a random one for its block hashes",
    "master": "the master answers",
    "versions": "master and nodes speak this protocol, and are of this version",
    "clock": "the clocks of master and nodes are as this one",
    "nodes": "every node is live, has a name of its own, and can be reached from here",
    "bandwidth": "what is read from each node a second, against what an engine computes again a second",
}
"""Every check's id and what it looks at. Ids don't change: documents and alerts name them."""


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, advice: str) -> Finding:
    """It could be better."""
    return Finding(check, Level.WARNING, what, advice)


def broken(check: str, what: str, advice: str) -> Finding:
    """It must be mended."""
    return Finding(check, Level.BROKEN, what, advice)
