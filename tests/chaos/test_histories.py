"""Random small histories: a match never returns more than some order of the acknowledged operations allows.

A core, nodes on paper whose reports and answers may be late, a real entry log over a store in memory, and masters that
take over with what the log hints at and the nodes tell. The model is the set of blocks that may be there: put and not
removed since by anything acknowledged. What was evicted nobody has acknowledged, so a log that is older than that may
name it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.paper_cluster import PaperCluster, blocks_of, chain, chained_spec, dropped
from support.soak import SOAK

from moonpool.master.core import MasterCore
from moonpool.master.entry_log.logs import EntryLogs
from moonpool.master.eviction import LeastRecentlyUsed
from moonpool.master.recorder import unfenced
from moonpool.master.store.memory import MemoryStore
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.messages import InventoryEnd, Match, Matched, RegisterKeyspace, Remove
from moonpool.schemas.packed import join_hashes

NODES = ("a", "b")
LENGTH = 6
TRUNK = chain(LENGTH, "trunk")
CHAINS = (TRUNK, TRUNK[:2] + chain(LENGTH, "branch")[2:])


class PaperClock:
    """The cluster's."""

    def __init__(self, cluster: PaperCluster) -> None:
        self._cluster = cluster

    def now_s(self) -> float:
        return self._cluster.now_s


class History:
    """Operations, each with what the model makes of it."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self.run = run
        self.cluster = PaperCluster(chained_spec())
        self.store = MemoryStore()
        self.run(self.read_log())
        self.possible: set[bytes] = set()
        self.evicted: set[bytes] = set()
        """Of which the log may not know yet."""
        self.unheard: set[str] = set()
        """Nodes that were away when a master took over, and that it can't know of yet."""
        for name in NODES:
            self.cluster.join(name)

    def connected(self, name: str) -> bool:
        return self.cluster.segments[name].connected

    # ------------------------------------------------------------ the entry log

    async def read_log(self) -> None:
        """A master begins."""
        restorer = self.cluster.core.restorer
        self.logs = EntryLogs(self.store, restorer, PaperClock(self.cluster), unfenced, every_s=3600)
        self.logs.own(0)
        while not self.logs.facts()["log_shards_read"]:
            await asyncio.sleep(0)

    def write_log(self, name: str, which: int, count: int, late: bool) -> None:
        """A pass, if the master knows enough for one."""
        self.run(self.logs.flush([0]))

    # ------------------------------------------------------------ operations

    def write(self, name: str, which: int, length: int, late: bool) -> None:
        """The first blocks of a chain, committed on a node. Its report is `late`: it comes with the next one."""
        if not self.connected(name):
            return
        segment = self.cluster.segments[name]
        blocks = blocks_of(CHAINS[which])[: length + 1]
        fresh = [block for block in blocks if block.block_hash not in self.held(NODES)]
        if not fresh:
            return
        entries = self.cluster.entries([(0, block, segment.fill(0, block)) for block in fresh])
        self.possible |= {block.block_hash for block in fresh}
        self.evicted -= self.possible
        segment.outbox.append(entries)
        if not late:
            self.cluster.report(name)

    def remove(self, name: str, which: int, position: int, late: bool) -> None:
        """A block with all that hangs on it. Acknowledged only where every node has confirmed."""
        gone = CHAINS[which][position]
        outcome = self.cluster.outcome(Remove(self.cluster.keyspace, gone, True, 0))
        if not late:
            for node in NODES:
                self.talk(node, which, position, late)
        lacking = self.logs.removed(self.cluster.keyspace, [0])
        if set(outcome.awaits) <= set(self.cluster.confirmed):
            self.run(self.logs.void(self.cluster.keyspace, lacking, 1.0))
            self.possible -= {gone} - self.held(self.unheard)
            # What hung on it and was not reported yet, the master did not know of.
            below = {h for hashes in CHAINS if gone in hashes for h in hashes[hashes.index(gone) :]}
            self.possible -= below - {gone} - self.held(NODES)
            self.evicted -= below

    def held(self, names: Iterable[str]) -> set[bytes]:
        """What lies on these nodes."""
        return {block_hash for name in names for _, block_hash in self.cluster.segments[name].held}

    def evict(self, name: str, which: int, count: int, late: bool) -> None:
        """A node asks for room."""
        if self.connected(name):
            victims = self.cluster.need(name, count)
            gone = {block_hash for _, block_hash, _ in dropped(victims.drops)}
            self.evicted |= (gone & self.possible) - self.held(NODES)
            self.possible -= gone - self.held(NODES)

    def talk(self, name: str, which: int, count: int, late: bool) -> None:
        """What a node has to say is said."""
        if self.connected(name):
            self.cluster.report(name)

    def leave(self, name: str, which: int, count: int, late: bool) -> None:
        """A connection breaks."""
        if self.connected(name):
            self.cluster.disconnect(name)

    def come_back(self, name: str, which: int, count: int, late: bool) -> None:
        """And is made again. The inventory may come later."""
        self.cluster.join(name, inventory=False)
        self.unheard.discard(name)
        if not late:
            self.cluster.report(name, *self.cluster.inventory(name), InventoryEnd())

    def take_over(self, name: str, which: int, count: int, late: bool) -> None:
        """Another master, which knows what the log says. Orders of the one before don't come back."""
        self.run(self.logs.close())
        self.cluster.core = MasterCore(1, self.cluster.core.epoch + 1, MasterSettings(), LeastRecentlyUsed())
        self.cluster.ask(RegisterKeyspace(self.cluster.spec))
        self.cluster.confirmed.clear()  # drops are numbered anew
        self.run(self.read_log())
        self.possible |= self.evicted
        self.unheard = {node for node in NODES if not self.connected(node)}
        for node in NODES:
            if self.connected(node):
                self.come_back(node, which, count, late)

    def pause(self, name: str, which: int, count: int, late: bool) -> None:
        """Leases end, silent nodes become suspect or lost."""
        self.cluster.advance(4.0 if late else 40.0)

    # ------------------------------------------------------------ agreement

    def check(self) -> None:
        """Every chain, matched."""
        self.cluster.core.validate()
        for hashes in CHAINS:
            answer = self.cluster.ask(Match(self.cluster.keyspace, [(0, join_hashes(hashes))]))
            assert isinstance(answer, Matched)
            allowed = next((i for i, one in enumerate(hashes) if one not in self.possible), LENGTH)
            assert answer.ready[0] <= allowed, f"{answer.ready[0]} blocks, of which {allowed} can be there"


OPERATIONS: tuple[Callable[[History, str, int, int, bool], None], ...] = (
    History.write,
    History.write,
    History.write,
    History.remove,
    History.remove,
    History.evict,
    History.talk,
    History.leave,
    History.come_back,
    History.take_over,
    History.take_over,
    History.write_log,
    History.write_log,
    History.pause,
)
steps = st.tuples(
    st.sampled_from(OPERATIONS),
    st.sampled_from(NODES),
    st.integers(0, len(CHAINS) - 1),
    st.integers(0, LENGTH - 1),
    st.booleans(),
)


@settings(derandomize=True, deadline=None, max_examples=400 * SOAK)
@given(st.lists(steps, min_size=12, max_size=40))
def test_a_match_is_no_longer_than_the_acknowledged_operations_allow(
    history: list[tuple[Callable[[History, str, int, int, bool], None], str, int, int, bool]],
) -> None:
    with runner() as run:
        state = History(run)
        for operation, name, which, number, late in history:
            operation(state, name, which, number, late)
            state.check()
        run(state.logs.close())


@contextmanager
def runner() -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Runs coroutines to their ends, one by one, in one event loop."""
    with asyncio.Runner() as loop:
        yield loop.run
