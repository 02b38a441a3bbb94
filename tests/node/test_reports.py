"""The report stream, between a real NodeCore and a model of a master that loses, repeats and forgets."""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.node_sink import IndexSink
from support.stateful import stateful_settings

from moonpool.schemas.errors import Unavailable
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Begin,
    BeginItem,
    DropDone,
    DropList,
    Entries,
    Freed,
    Granted,
    InventoryEnd,
    Moved,
    PutAnswer,
    Report,
)
from moonpool.schemas.packed import U32, U64, pack_u32, pack_u64
from moonpool.store_client.node import reports
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.inventory import Inventory
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.reports import ReportStream, Surplus

SPEC = KeyspaceSpec(kind=Kind.FLAT, name="state", shard_bytes=(3000, 30000))
DIGEST = SPEC.digest()
SESSION = 5


class Rig:
    """A core whose sink is a stream, and the truth beside it."""

    def __init__(self, *, window: int = 3, queued_rows_max: int = 200) -> None:
        self.truth = IndexSink()
        self.streams = 0
        self.stream = ReportStream(
            b"segment",
            lambda: Inventory(self.core.slots),
            self._new_stream,
            window=window,
            queued_rows_max=queued_rows_max,
        )
        self.core = NodeCore(HeapMemory(Layout(64 << 10, 8)), self)
        self.core.register(SPEC)
        self.core.open_session(SessionRecord(SESSION, "/lock"))
        self.puts = 0

    @property
    def begun(self) -> int:
        """Raised whenever a stream begins or ends."""
        return 2 * self.streams + (not self.stream.connected)

    def naming(self, shard: int) -> bool:
        return self.stream.naming

    def opening(self) -> bool:
        return self.stream.opening

    def emit(self, op: object, shard: int = 0) -> int:
        serial = self.stream.emit(op, new=isinstance(op, Entries))  # type: ignore[arg-type]
        # With an inventory open the stream may say twice what the truth knows once.
        if not (isinstance(op, Entries) and self.naming(0) and self._known(op)):
            self.truth.play(op)  # type: ignore[arg-type]
        return serial

    def _known(self, op: Entries) -> bool:
        index = IndexSink()
        index.play(op)
        return all(self.truth.index.get(slot) == entry for slot, entry in index.index.items())

    def checksum(self, payload: bytes) -> int:
        return 0

    def written(self, slots: U32, generations: U64) -> None:
        pass

    def _new_stream(self) -> int:
        self.streams += 1
        return self.streams

    def put(self, count: int, rank: int) -> int:
        """Commits as many as there is room for; returns the serial to wait for."""
        self.puts += 1
        hashes = b"".join(hashlib.sha256(f"{self.puts} {index}".encode()).digest() for index in range(count))
        item = BeginItem(DIGEST, rank, 0, b"", hashes)
        assert isinstance(self.core.begin(SESSION, Begin(SESSION, self.puts, [item]), partial=True), Granted)
        self.core.commit(SESSION, [self.puts])
        return self.core.reported.get(0, -1)

    def drop(self, step: int) -> None:
        """Every step-th object."""
        places = [(slot, entry.generation) for slot, entry in sorted(self.truth.index.items())][::step]
        slots, generations = [slot for slot, _ in places], [generation for _, generation in places]
        self.core.drops.exact([DropList(DIGEST, b"", b"", pack_u32(slots), pack_u64(generations))])


class MasterModel:
    """Rows of one segment, as a master keeps them: a new stream's inventory says what else to forget."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.named: set[tuple[int, int]] | None = None
        self.expected = (-1, 0)
        self.done: set[int] = set()

    def take(self, report: Report) -> bool:
        """False: a gap."""
        if report.sequence == 0:
            self.named = set()
        elif (report.stream, report.sequence) != self.expected:
            return False
        self.expected = (report.stream, report.sequence + 1)
        for op in report.ops:
            self.apply(op)
        return True

    def apply(self, op: object) -> None:
        if isinstance(op, Entries):
            index = IndexSink()
            index.play(op)
            for slot, entry in index.index.items():
                self.rows[slot] = entry.generation
                if self.named is not None:
                    self.named.add((slot, entry.generation))
        elif isinstance(op, Freed):
            for slot, generation in _places(op.slots, op.generations):
                if self.rows.get(slot) == generation:
                    del self.rows[slot]
        elif isinstance(op, Moved):
            new_places = _places(op.new_slots, op.new_generations)
            for (slot, generation), (new_slot, new) in zip(
                _places(op.slots, op.generations), new_places, strict=True
            ):
                assert self.rows.pop(slot) == generation, "a move of what the master was never told of"
                self.rows[new_slot] = new
                if self.named is not None:
                    self.named.add((new_slot, new))
        elif isinstance(op, DropDone):
            self.done.add(op.drop_id)
        elif isinstance(op, InventoryEnd):
            assert self.named is not None
            self.rows = {slot: gen for slot, gen in self.rows.items() if (slot, gen) in self.named}
            self.named = None


def _places(slots: bytes, generations: bytes) -> list[tuple[int, int]]:
    return [
        (
            int.from_bytes(slots[4 * i : 4 * i + 4], "little"),
            int.from_bytes(generations[8 * i : 8 * i + 8], "little"),
        )
        for i in range(len(slots) // 4)
    ]


class StreamMachine(RuleBasedStateMachine):
    """Commits, drops and moves on one side; messages, losses and restarts on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.stream = self.rig.stream
        self.master = MasterModel()
        self.wire: deque[Report] = deque()
        self.waits: list[Future[Surplus]] = []
        self.unbroken: list[tuple[Future[Surplus], int]] = []
        self.epoch = 1
        self.drops = 0
        self.owed: set[int] = set()
        self.stream.connect(self.epoch)

    @rule(count=st.integers(1, 60), rank=st.integers(0, 1), visible=st.booleans())
    def put(self, count: int, rank: int, visible: bool) -> None:
        begun_under = self.rig.begun
        serial = self.rig.put(count, rank)
        if visible:
            self.waits.append(self.stream.wait(serial))
            self.unbroken.append((self.stream.wait(serial, unbroken=True), begun_under))

    @rule(step=st.integers(1, 4))
    def drop(self, step: int) -> None:
        self.rig.drop(step)

    @rule()
    def confirm_a_drop(self) -> None:
        self.drops += 1
        self.rig.emit(DropDone(self.drops))
        self.owed.add(self.drops)

    @rule(rank=st.integers(0, 1))
    def empty_a_page(self, rank: int) -> None:
        if self.rig.core.moves.choose(4096 if rank else 32768):
            while self.rig.core.moves.step(16384):
                pass

    @rule(messages=st.integers(1, 4))
    def send(self, messages: int) -> None:
        for _ in range(messages):
            report = self.stream.next_report()
            if report is not None:
                self.wire.append(report)

    @precondition(lambda self: self.wire)
    @rule(answered=st.booleans())
    def deliver(self, answered: bool) -> None:
        report = self.wire.popleft()
        if not self.master.take(report):
            self.stream.gap(report.stream)
        elif answered:
            self.stream.acknowledged(report.stream, report.sequence, {report.sequence: PutAnswer.BUSY})

    @precondition(lambda self: self.wire)
    @rule()
    def lose_a_message(self) -> None:
        self.wire.popleft()

    @rule()
    def disconnect(self) -> None:
        self.wire.clear()
        self.stream.disconnect()

    @rule(same=st.booleans())
    def connect(self, same: bool) -> None:
        self.wire.clear()
        if not same:
            self.epoch += 1
            self.master = MasterModel()
            self.owed.clear()
        self.stream.connect(self.epoch)

    @invariant()
    def is_sound(self) -> None:
        self.stream.validate()
        for wait, stream in self.unbroken:
            if not wait.done():
                assert stream == self.rig.begun, "it waits for a stream that is no more"
            elif wait.exception() is None:
                assert stream == self.rig.begun, "another stream has told of it"
            else:
                assert stream < self.rig.begun or stream % 2, "it was given up, and its stream goes on"
        self.unbroken = [(wait, stream) for wait, stream in self.unbroken if not wait.done()]
        if self.stream.settled:
            assert self.stream.connected and not self.stream.naming and not self.stream.opening
            assert self.master.named is None, "the master doesn't know all"

    def teardown(self) -> None:
        """Once messages get through, master and headers agree, and nobody waits any more."""
        self.connect(same=True)
        for _ in range(1000):
            report = self.stream.next_report()
            if report is None:
                break
            assert self.master.take(report)
            self.stream.acknowledged(report.stream, report.sequence)
        assert self.stream.next_report() is None
        truth = {slot: entry.generation for slot, entry in self.rig.truth.index.items()}
        assert self.master.rows == truth
        assert all(wait.done() for wait in self.waits)
        assert self.owed <= self.master.done
        self.rig.core.validate()


TestStream = StreamMachine.TestCase
TestStream.settings = stateful_settings(10_000)


def drain(rig: Rig) -> list[Report]:
    """Every message that may be sent now."""
    messages = []
    while (report := rig.stream.next_report()) is not None:
        messages.append(report)
    return messages


def test_an_overflow_starts_a_new_stream() -> None:
    rig = Rig(window=1, queued_rows_max=50)
    rig.stream.connect(1)
    first = drain(rig)
    assert [message.sequence for message in first] == [0]
    for _ in range(6):
        rig.put(10, 0)
    assert rig.stream.streams_started == 2
    assert rig.stream.queued_rows <= 50
    (again,) = drain(rig)
    assert again.sequence == 0 and again.stream != first[0].stream
    assert sum(len(op.slots) // 4 for op in again.ops if isinstance(op, Entries)) == 60


def test_the_window_bounds_what_is_unacknowledged() -> None:
    rig = Rig(window=2)
    rig.stream.connect(1)
    sent = drain(rig)
    rig.put(1, 0)
    sent += drain(rig)
    rig.put(1, 0)
    assert len(sent) == 2 and drain(rig) == []
    rig.stream.acknowledged(sent[0].stream, 0)
    assert len(drain(rig)) == 1


def test_a_late_acknowledgement_of_an_earlier_stream_says_nothing() -> None:
    rig = Rig()
    rig.stream.connect(1)
    wait = rig.stream.wait(rig.put(1, 0))
    (report,) = drain(rig)
    rig.stream.connect(1)
    rig.stream.acknowledged(report.stream, report.sequence)
    assert not wait.done()
    (report,) = drain(rig)
    rig.stream.acknowledged(report.stream, report.sequence)
    assert wait.done()


def test_waiting_without_a_master_ends_with_the_next_inventory() -> None:
    rig = Rig()
    wait = rig.stream.wait(rig.put(1, 0))
    rig.stream.connect(7)
    assert not wait.done()
    (report,) = drain(rig)
    rig.stream.acknowledged(report.stream, report.sequence)
    assert wait.done()


def test_waiters_are_bounded_and_cancelled_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "WAITERS_MAX", 2)
    rig = Rig()
    serial = rig.put(1, 0)
    waits = [rig.stream.wait(serial) for _ in range(2)]
    with pytest.raises(Unavailable):
        rig.stream.wait(serial)
    waits[0].cancel()
    rig.stream.wait(serial)


def test_a_large_segment_is_named_in_bounded_messages() -> None:
    rig = Rig(window=100)
    rig.core = NodeCore(HeapMemory(Layout(64 << 20, 1)), rig)
    rig.core.register(SPEC)
    rig.core.open_session(SessionRecord(SESSION, "/lock"))
    for _ in range(4):
        rig.put(4000, 0)
    rig.stream.connect(1)
    messages = drain(rig)
    rows = [sum(len(op.slots) // 4 for op in m.ops if isinstance(op, Entries)) for m in messages]
    assert sum(rows) == 16000 and max(rows) <= 2 * reports.MESSAGE_ROWS and len(rows) >= 2
    assert isinstance(messages[-1].ops[-1], InventoryEnd)
