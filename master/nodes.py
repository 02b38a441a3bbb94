"""Nodes as a master sees them: who lives, who is suspect, who is lost (no I/O, no clock).

    joining ── inventory complete ──► live ◄── heard again, or announced ── suspect ── 30 s of silence ──► lost
       └───────── silence of 3 s, or a closed connection ──────────────────► ▲ └─ the third time in 10 min ─► ▲
    lost ── announced ──► joining

Each segment has a small number, its index, that location columns hold instead of its id.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection

import numpy as np

from moonpool.master.columns import NO_SEGMENT
from moonpool.master.node import FLAPS_MAX, OUTSTANDING_MAX, Node
from moonpool.schemas.errors import InvalidParams, NotFound, Overloaded
from moonpool.schemas.messages import NodeEntry, NodeInfo, NodeState

log = logging.getLogger(__name__)

NODES_MAX = 16384
FLAPS_WINDOW_S = 600.0
CANDIDATES_MAX = 64
"""Of a large cluster so many segments are weighed for a put, each time others: all of them would take longer than
the rest of the answer, and the best of so many is nearly as good."""

LOST_MEMORY_S = 600.0
"""How long removals are kept for a lost node that may come back."""

CHANGES_MAX = 1024
SEGMENT_ID_BYTES_MAX = 64


READABLE = (NodeState.JOINING, NodeState.LIVE)


class Nodes:
    """All segments that have announced themselves and are not forgotten."""

    def __init__(self, suspect_after_s: float, lost_after_s: float) -> None:
        self._suspect_after_s = suspect_after_s
        self._lost_after_s = lost_after_s
        self._nodes: dict[bytes, Node] = {}
        self._free_indices: list[int] = []  # of forgotten nodes
        self.names: list[bytes] = []  # by index
        self.usable = np.zeros(NO_SEGMENT + 1, dtype=np.bool_)
        self.staying = np.zeros(NO_SEGMENT + 1, dtype=np.bool_)  # usable, and not to be emptied
        self._draining: set[str] = set()  # names: a node that starts again is still to be emptied
        self._unswept: set[int] = set()  # indices of lost nodes whose copies are not all gone
        self.impaired = False
        self.changes: deque[tuple[str, bytes, NodeState]] = deque(maxlen=CHANGES_MAX)
        """States that nodes took lately, for whoever takes them out."""
        self._suspects: set[int] = set()  # indices
        self._writable: dict[int, Node] = {}  # by index
        self._by_host: dict[str, dict[int, Node]] = {}  # of the writable ones
        self._ring: list[Node] = []  # the writable ones once more, empty when it must be made anew
        self._turn = 0
        self._most_rewritten = 0.0

    def __len__(self) -> int:
        return len(self._nodes)

    # ------------------------------------------------------------ events

    def announce(self, info: NodeInfo, now_s: float) -> Node:
        """The segment is here, or here again. Its next report must begin a stream. Raises Overloaded."""
        if not 0 < len(info.segment) <= SEGMENT_ID_BYTES_MAX:
            raise InvalidParams(
                field="segment", value=info.segment.hex(), allowed=f"1 to {SEGMENT_ID_BYTES_MAX} bytes"
            )
        node = self._nodes.get(info.segment)
        if node is None:
            node = self._add(info, now_s)
        if not node.info.capacity_bytes:  # one that was remembered
            node.free_bytes = info.capacity_bytes
        node.shuns.clear()
        self._leave(node)  # it may have moved to another host
        node.info, node.heard_s, node.connected = info, now_s, True
        node.cut_streams()
        node.retold = set(node.outstanding)
        if node.state is NodeState.LOST:
            node.complete = False
            node.named.clear()
            self._unswept.discard(node.index)
        self._set_state(node, NodeState.LIVE if node.complete else NodeState.JOINING)
        return node

    def remember(self, segment: bytes, name: str, now_s: float) -> None:
        """A segment that an earlier master knew: suspect until it announces itself."""
        if segment in self._nodes:
            return
        info = NodeInfo(
            node=name,
            segment=segment,
            host="",
            rpc_address="",
            data_address="",
            unix_path="",
            segment_path="",
            capacity_bytes=0,
            page_bytes=0,
        )
        node = self._add(info, now_s)
        node.connected = False
        self._set_state(node, NodeState.SUSPECT)

    def _add(self, info: NodeInfo, now_s: float) -> Node:
        if not self._free_indices:
            if len(self.names) == NODES_MAX:
                raise Overloaded(what="the list of nodes", limit=NODES_MAX)
            self._free_indices.append(len(self.names))
            self.names.append(b"")
        index = self._free_indices.pop()
        self.names[index] = info.segment
        node = self._nodes[info.segment] = Node(
            info,
            index,
            NodeState.JOINING,
            now_s,
            free_bytes=info.capacity_bytes,
            rewritten=self._most_rewritten,
        )
        return node

    def stored(self, node: Node, size_bytes: int) -> None:
        """So much was put there. A new node begins with the most that others had: what fills it then is younger than
        theirs. Nobody falls back by more than one whole memory, so that who wrote much once is soon written to again."""
        node.gained(-size_bytes)
        least = max(node.rewritten, self._most_rewritten - 1)
        node.rewritten = least + min(1.0, size_bytes / max(1, node.info.capacity_bytes))
        self._most_rewritten = max(self._most_rewritten, node.rewritten)

    def heard(self, segment: bytes, now_s: float) -> Node:
        """Any message of a node that isn't lost. Raises NotFound: announce first."""
        node = self._nodes.get(segment)
        if node is None or node.state is NodeState.LOST:
            raise NotFound(key=f"node with segment {segment.hex()}")
        node.heard_s = now_s
        if node.state is NodeState.SUSPECT:
            node.connected = True
            self._set_state(node, NodeState.LIVE if node.complete else NodeState.JOINING)
        return node

    def disconnected(self, segment: bytes, now_s: float) -> Node | None:
        """Its connection is closed: suspect at once. Returns the node where that makes it lost."""
        node = self._nodes.get(segment)
        if node is None or node.state is NodeState.LOST:
            return None
        node.connected = False
        node.cut_streams()
        return self._suspect(node, now_s) if node.state is not NodeState.SUSPECT else None

    def inventory_complete(self, node: Node, shard: int, owned: Collection[int]) -> None:
        """The node's stream has named all it holds of a shard."""
        node.named.add(shard)
        node.complete = node.complete or node.named.issuperset(owned)
        if node.complete and node.state is NodeState.JOINING:
            self._set_state(node, NodeState.LIVE)

    def tick(self, now_s: float) -> list[Node]:
        """Time has passed. Returns the nodes that it made lost."""
        lost: list[Node] = []
        for node in self._nodes.values():
            silent_s = now_s - node.heard_s
            if node.state is NodeState.SUSPECT and silent_s > self._lost_after_s:
                self._lose(node)
                lost.append(node)
            elif node.state in READABLE and silent_s > self._suspect_after_s and self._suspect(node, now_s):
                lost.append(node)
        return lost

    def swept(self, index: int) -> None:
        """No copy on a lost node is left in the index."""
        self._unswept.discard(index)
        self._see_impaired()

    def forgettable(self, now_s: float) -> list[Node]:
        """Lost nodes that need not be remembered any more."""
        return [
            node
            for node in self._nodes.values()
            if node.state is NodeState.LOST
            and node.index not in self._unswept
            and now_s - node.heard_s > self._lost_after_s + LOST_MEMORY_S
        ]

    def forget(self, node: Node) -> None:
        """Its index may be given to another segment."""
        del self._nodes[node.info.segment]
        self.names[node.index] = b""
        self._free_indices.append(node.index)

    # ------------------------------------------------------------ states

    def _suspect(self, node: Node, now_s: float) -> Node | None:
        node.flaps_s.append(now_s)
        while node.flaps_s[0] <= now_s - FLAPS_WINDOW_S:
            node.flaps_s.popleft()
        if len(node.flaps_s) >= FLAPS_MAX:
            self._lose(node)
            return node
        self._set_state(node, NodeState.SUSPECT)
        return None

    def _lose(self, node: Node) -> None:
        node.cut_streams()
        self._unswept.add(node.index)
        self._set_state(node, NodeState.LOST)

    def _set_state(self, node: Node, state: NodeState) -> None:
        if node.state is not state:
            log.info("node %s (%s) is %s", node.info.node, node.info.segment.hex(), state.name.lower())
            self.changes.append((node.info.node, node.info.segment, state))
        node.state = state
        self.usable[node.index] = state in READABLE
        self.staying[node.index] = self._takes_puts(node)
        self._leave(node)
        if state is NodeState.SUSPECT:
            self._suspects.add(node.index)
        else:
            self._suspects.discard(node.index)
        if self._takes_puts(node):
            self._writable[node.index] = node
            self._by_host.setdefault(node.info.host, {})[node.index] = node
        self._see_impaired()

    def _takes_puts(self, node: Node) -> bool:
        return node.state in READABLE and node.info.node not in self._draining

    def _leave(self, node: Node) -> None:
        self._ring = []
        if self._writable.pop(node.index, None) is not None:
            here = self._by_host[node.info.host]
            del here[node.index]
            if not here:
                del self._by_host[node.info.host]

    def _see_impaired(self) -> None:
        self.impaired = bool(self._unswept or self._suspects)

    # ------------------------------------------------------------ facts

    def get(self, segment: bytes) -> Node | None:
        """The node of a segment."""
        return self._nodes.get(segment)

    def at(self, index: int) -> Node | None:
        """The node that has that index now."""
        return self._nodes.get(self.names[index])

    def all(self) -> list[Node]:
        """Every node, lost ones too."""
        return list(self._nodes.values())

    def unswept(self) -> list[int]:
        """Indices of lost nodes whose copies are not all gone."""
        return list(self._unswept)

    def remember_drain(self, name: str, on: bool) -> bool:
        """No new puts go to nodes of this name, or they do again, whether or not they are here yet. Returns whether
        that is new."""
        if (name in self._draining) is on:
            return False
        (self._draining.add if on else self._draining.discard)(name)
        for node in self._nodes.values():
            if node.info.node == name:
                self._set_state(node, node.state)
        return True

    def drain(self, name: str, on: bool) -> bool:
        """The same. Raises NotFound: a misspelt name must not seem to be drained."""
        if name not in self._draining and all(node.info.node != name for node in self._nodes.values()):
            raise NotFound(key=f"node {name!r}")
        return self.remember_drain(name, on)

    def named(self, name: str) -> Node:
        """The newest node of a name that may be read. Raises NotFound."""
        found = [node for node in self._nodes.values() if node.info.node == name and node.state in READABLE]
        if not found:
            raise NotFound(key=f"node {name!r}")
        return found[-1]

    def writable_on(self, host: str) -> Collection[Node]:
        """Nodes of one host that may be written to."""
        return self._by_host.get(host, {}).values()

    def only_writable(self, host: str) -> Node | None:
        """The node that every put of a writer on that host goes to; None: there is none, or another one may be chosen."""
        here = (self._by_host.get(host) if host else None) or self._writable
        return next(iter(here.values())) if len(here) == 1 else None

    def writable(self) -> list[Node]:
        """Nodes that may be written to: all of a small cluster, CANDIDATES_MAX of a large one."""
        self._ring = self._ring or list(self._writable.values())
        if len(self._ring) <= CANDIDATES_MAX:
            return self._ring
        first = self._turn = (self._turn + CANDIDATES_MAX) % len(self._ring)
        some = self._ring[first : first + CANDIDATES_MAX]
        return some + self._ring[: CANDIDATES_MAX - len(some)]

    def near(self, host: str) -> list[int]:
        """Indices of segments of one host that may be written to: readers of that host prefer them."""
        return list(self._by_host.get(host, ()))

    def draining(self) -> list[Node]:
        """Those that are to be emptied."""
        return (
            [node for node in self._nodes.values() if node.info.node in self._draining]
            if self._draining
            else []
        )

    def entries(self) -> list[NodeEntry]:
        """For the cluster map."""
        return [
            NodeEntry(node.info, node.state, node.free_bytes, node.info.node in self._draining)
            for node in self._nodes.values()
        ]

    def validate(self) -> None:
        """Asserts that derived facts agree with the nodes' states."""
        indices = {node.index for node in self._nodes.values()}
        assert len(indices) == len(self._nodes), "two nodes with one index"
        assert len(indices) + len(self._free_indices) == len(self.names), (
            "an index lost, or both free and used"
        )
        assert self._unswept <= indices, "a sweep of a forgotten node"
        for node in self._nodes.values():
            assert self.names[node.index] == node.info.segment, "a wrong name"
            assert self.usable[node.index] == (node.state in READABLE), "usable is wrong"
            assert self.staying[node.index] == self._takes_puts(node), "staying is wrong"
            assert len(node.flaps_s) <= FLAPS_MAX, "flaps are not bounded"
            per_shard = Counter(drop.shard for drop in node.outstanding.values())
            assert max(per_shard.values(), default=0) <= OUTSTANDING_MAX, "outstanding drops are not bounded"
        suspects = {node.index for node in self._nodes.values() if node.state is NodeState.SUSPECT}
        assert self._suspects == suspects, "who is suspect is wrong"
        assert self.impaired == bool(self._unswept or suspects), "impaired is wrong"
        writable = {node.index for node in self._nodes.values() if self._takes_puts(node)}
        assert set(self._writable) == writable, "who may be written to is wrong"
        hosts = {(host, index) for host, here in self._by_host.items() for index in here}
        assert hosts == {(self._writable[index].info.host, index) for index in writable}, "a node on no host"
        assert not self._ring or {node.index for node in self._ring} == writable, "the ring is stale"
        usable = int(np.count_nonzero(self.usable))
        assert usable == sum(node.state in READABLE for node in self._nodes.values()), "usable, and unknown"
        assert all(node.rewritten <= self._most_rewritten for node in self._nodes.values()), (
            "written more than most"
        )
