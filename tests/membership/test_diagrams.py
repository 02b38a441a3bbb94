"""The diagrams in ARCHITECTURE.md show what the code does, and nothing else."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

import pytest

from moonpool.benchmarks.paper_node import node_info
from moonpool.master.membership.shard_state import TRANSITIONS, ShardState
from moonpool.master.node import Node
from moonpool.master.nodes import Nodes
from moonpool.schemas.errors import NotFound
from moonpool.schemas.messages import NodeState

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"


def drawn(states: set[str]) -> list[tuple[str, str, str]]:
    """(before, what happens, after) of each arrow between these states."""
    arrows = re.findall(r"^    (\w+) --> (\w+): (.+)$", ARCHITECTURE.read_text(), re.MULTILINE)
    return [(before, event, after) for before, after, event in arrows if {before, after} <= states]


def test_the_states_of_a_shard() -> None:
    held = {"loading", "serving", "draining"}
    lease = {(state, "lease late", "fenced") for state in held}
    lease |= {("fenced", "lease renewed", state) for state in held} | {("fenced", "lease lost", "absent")}
    assert set(drawn({state.value for state in ShardState})) == set(TRANSITIONS) | lease


def test_the_states_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long walk at random passes every arrow, and takes no step that isn't drawn."""
    seen: set[tuple[str, str]] = set()
    set_state = Nodes._set_state

    def watched(nodes: Nodes, node: Node, state: NodeState) -> None:
        if node.state is not state:
            seen.add((node.state.name.lower(), state.name.lower()))
        set_state(nodes, node, state)

    monkeypatch.setattr(Nodes, "_set_state", watched)
    dice, now_s = random.Random(1), 0.0
    nodes, info = Nodes(3.0, 30.0), node_info(b"segment")
    for _ in range(20_000):
        now_s += dice.choice((0.5, 2.0, 10.0, 100.0))
        node = nodes.get(b"segment")
        match dice.randrange(5):
            case 0:
                nodes.announce(info, now_s)
            case 1 if node is not None and node.state in (NodeState.JOINING, NodeState.LIVE):
                nodes.inventory_complete(node, 0, [0])
            case 2:
                nodes.disconnected(b"segment", now_s)
            case 3:
                with contextlib.suppress(NotFound):
                    nodes.heard(b"segment", now_s)
            case _:
                nodes.tick(now_s)
        if node is not None and node.state is NodeState.LOST:
            nodes.swept(node.index)
    assert seen == {
        (before, after) for before, _, after in drawn({state.name.lower() for state in NodeState})
    }
