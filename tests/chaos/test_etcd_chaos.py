"""Masters, nodes, clients and etcd, killed, frozen, cut off and put out of time by a seeded die, while clients work.

Contents follow from keys. What must hold through it all: no wrong byte, every call within its deadline. And at the end: no
acknowledged pin lost or removal undone, no slot lost, and masters, etcd and headers that agree on every block. MOONPOOL_CHAOS_SEED replays a
run; MOONPOOL_SOAK=1 makes it last 20 minutes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from chaos.audit import (
    SPECS,
    assert_all_space_comes_back,
    assert_pins_are_kept,
    assert_removals_hold,
    assert_space_is_whole,
)
from chaos.cluster import PARTS, Cluster
from chaos.faults import Kind, plan

pytestmark = pytest.mark.etcd

SEED = int(os.environ.get("MOONPOOL_CHAOS_SEED", "4"))
LENGTH_S = "1200" if os.environ.get("MOONPOOL_SOAK") == "1" else "25"
CHAOS_S = float(os.environ.get("MOONPOOL_CHAOS_S", LENGTH_S))
WATCH_S = 0.2


def act(cluster: Cluster) -> Counter[str]:
    """Strikes and heals as planned. Returns how often each kind was."""
    faults = plan(SEED, CHAOS_S, PARTS, cluster.kinds)
    steps = [(fault.at_s, cluster.strike, fault) for fault in faults]
    steps += [(fault.end_s, cluster.heal, fault) for fault in faults if fault.kind is not Kind.STEP_CLOCK]
    start_s = time.monotonic()
    for at_s, do, fault in sorted(steps, key=lambda step: step[0]):
        while time.monotonic() < start_s + at_s:
            cluster.supervise()
            time.sleep(min(WATCH_S, max(0.0, start_s + at_s - time.monotonic())))
        do(fault)
    print(*faults, sep="\n")
    return Counter(str(fault.kind) for fault in faults)


def what_clients_saw(cluster: Cluster) -> tuple[Counter[str], dict[str, list[Any]], float]:
    """Counts, what was wrong or late, and the slowest call."""
    counts: Counter[str] = Counter()
    bad: dict[str, list[Any]] = {"wrong": [], "late": []}
    slowest_s = 0.0
    for client in cluster.clients.values():
        for line in client.said():
            counts.update(line.get("counts", {}))
            slowest_s = max(slowest_s, line.get("slowest_s", 0.0))
            for kind, found in bad.items():
                found += [line[kind]] if kind in line else []
    return counts, bad, slowest_s


@pytest.mark.timeout(CHAOS_S + 900)
def test_nothing_is_lost_whoever_is_struck(tmp_path: Path) -> None:
    print(f"MOONPOOL_CHAOS_SEED={SEED}")
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path, SEED)
        cluster.settled()
        cluster.want_copies(SPECS, 2)  # copying goes on while everything is struck
        faults = act(cluster)
        cluster.settled()
        cluster.want_copies(SPECS, 1)
        cluster.stop_clients()
        cluster.copies_settled()
        counts, bad, slowest_s = what_clients_saw(cluster)
        print(
            f"{sum(faults.values())} faults in {CHAOS_S:.0f} s: {dict(faults)}; links cut: {bool(cluster.network)}"
        )
        print(f"{dict(counts)}, slowest call {slowest_s:.2f} s, started again: {dict(cluster.relaunches)}")
        assert not bad["wrong"] and not bad["late"], f"{bad}; see {tmp_path}"
        assert_space_is_whole(cluster)
        print(f"{cluster.copied()} blocks were copied by nodes as they are now")
        pinned, unpinned = assert_pins_are_kept(cluster)
        removed = assert_removals_hold(cluster)
        print(f"{pinned} pins, {unpinned} unpins and {removed} removals were acknowledged")
        assert_all_space_comes_back(cluster)
        assert not set(cluster.relaunches) - {"m0", "m1", "m2"}, f"{cluster.relaunches}; see {tmp_path}"
        # Or it showed nothing.
        assert (
            counts["verified"] > 50 * CHAOS_S / 30
            and pinned
            and removed
            and sum(faults.values()) > CHAOS_S / 3
        )
