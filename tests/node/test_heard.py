"""Reports that the master hears before it answers anybody: who is told of them at once, and of which."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from node.test_reports import Rig, StreamMachine
from support.stateful import stateful_settings

from moonpool.schemas.messages import DropDone, Entries, PutAnswer
from moonpool.schemas.packed import pack_u64
from moonpool.store_client.node.reports import ReportStream


class HeardMachine(StreamMachine):
    """No message is lost but with the connection, and the master takes all of them before it answers anybody: what it is
    known to hear of is as good as acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.told = 0

    def lose_a_message(self) -> None:
        """Never."""

    @rule()
    def settle(self) -> None:
        """The master takes all there is."""
        self.connect(same=True)
        while (report := self.stream.next_report()) is not None:
            assert self.master.take(report)
            self.stream.acknowledged(report.stream, report.sequence)

    @rule(count=st.integers(1, 6), rank=st.integers(0, 1), unbroken=st.booleans(), at_once=st.booleans())
    def put_and_send(self, count: int, rank: int, unbroken: bool, at_once: bool) -> None:
        if len(self.rig.truth.index) > 20:
            self.rig.drop(1)
        before = set(self.rig.truth.index)
        serial = self.rig.put(count, rank)
        rows = {slot: entry.generation for slot, entry in self.rig.truth.index.items() if slot not in before}
        waits = [] if at_once else [self.stream.wait(serial, unbroken=unbroken)]
        while (report := self.stream.next_report()) is not None:  # as many as may be under way
            self.wire.append(report)
            self.stream.heard(report.stream, report.sequence)
        waits = waits or [self.stream.wait(serial, unbroken=unbroken)]
        self.waits += waits
        if waits[0].done() and waits[0].exception() is None and rows:
            hearing = deepcopy(self.master)
            assert all(hearing.take(one) for one in self.wire)
            assert rows.items() <= hearing.rows.items()
            self.told += 1


def test_nobody_is_told_of_what_the_master_will_not_have_heard() -> None:
    machines: list[HeardMachine] = []

    class Counted(HeardMachine):
        def __init__(self) -> None:
            super().__init__()
            machines.append(self)

    run_state_machine_as_test(Counted, settings=stateful_settings(4000))  # type: ignore[no-untyped-call]
    assert sum(machine.told for machine in machines) > 50


def test_heard_is_for_what_is_new_alone() -> None:
    stream = _settled()
    old, new = stream.emit(DropDone(1)), stream.emit(DropDone(2), new=True)
    waits = [stream.wait(serial) for serial in (old, new)]
    report = stream.next_report()
    assert report is not None
    stream.heard(report.stream + 1, report.sequence)
    stream.heard(report.stream, report.sequence - 1)
    assert not waits[1].done()
    stream.heard(report.stream, report.sequence)
    assert [wait.done() for wait in waits] == [False, True]
    assert stream.wait(new).done() and not stream.wait(old).done(), "asked for later"
    stream.acknowledged(report.stream, report.sequence)
    assert waits[0].done()


def test_a_commit_of_several_is_as_old_as_the_oldest_of_them() -> None:
    """Its wait is for the last one."""
    stream = _settled()
    old = Entries(bytes(16), bytes(2), bytes(4), bytes(32), bytes(32), bytes(4), pack_u64([9]), bytes(8))
    stream.emit(old)
    wait = stream.wait(stream.emit(DropDone(2), new=True))
    report = stream.next_report()
    assert report is not None and len(report.ops) == 2
    stream.heard(report.stream, report.sequence)
    assert not wait.done()
    stream.acknowledged(report.stream, report.sequence, {9: PutAnswer.EXISTS})
    assert wait.result() == {9: PutAnswer.EXISTS}
    wait = stream.wait(stream.emit(DropDone(3), new=True))
    report = stream.next_report()
    assert report is not None
    stream.heard(report.stream, report.sequence)
    assert wait.done()


def test_what_was_heard_on_an_earlier_stream_counts_no_more() -> None:
    stream = _settled()
    first = stream.emit(DropDone(1), new=True)
    report = stream.next_report()
    assert report is not None
    stream.heard(report.stream, report.sequence)
    assert stream.wait(first).done()
    stream.restart()
    assert not stream.wait(first).done(), "who knows what came of it"
    new = stream.emit(DropDone(1), new=True)
    wait = stream.wait(new)
    report = stream.next_report()
    assert report is not None
    stream.heard(report.stream, report.sequence)
    assert not wait.done() and not stream.wait(new).done(), "the master doesn't know all"
    stream.acknowledged(report.stream, report.sequence)
    assert wait.done()


def test_what_the_master_may_hold_against_an_inventory_is_waited_for() -> None:
    stream = Rig().stream
    stream.connect(1)
    wait = stream.wait(stream.emit(DropDone(1), new=True))
    report = stream.next_report()
    assert report is not None and len(report.ops) > 2
    stream.heard(report.stream, report.sequence)
    assert not wait.done()
    stream.acknowledged(report.stream, report.sequence)
    assert wait.done()


def _settled() -> ReportStream:
    stream = Rig().stream
    stream.connect(1)
    report = stream.next_report()
    assert report is not None
    stream.acknowledged(report.stream, report.sequence)
    assert stream.settled
    return stream
