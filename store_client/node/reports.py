"""The one ordered stream of numbered messages from a segment to one shard's master: pure state, no socket.

Each op is queued at the moment its header changed. Inventory pages are read from the headers when there is room for
them and queued behind what is there, so the master sees every slot's changes in their order. Whatever breaks the order
(a gap, an overflow, a reconnect, a new epoch) starts a new stream with a full inventory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from moonpool.schemas.errors import Unavailable
from moonpool.schemas.messages import (
    Checked,
    Copied,
    DropDone,
    Entries,
    Freed,
    InventoryEnd,
    Moved,
    Obeyed,
    Op,
    Report,
)
from moonpool.schemas.packed import pack_u64
from moonpool.store_client.node.inventory import Inventory
from moonpool.store_client.node.obeyed import Order

WINDOW = 64
"""Messages sent and not acknowledged."""

QUEUED_ROWS_MAX = 1 << 18
"""Rows waiting to be sent; one more starts a new stream, whose inventory names them."""

MESSAGE_ROWS = 1024
"""About as many: a message holds the master for a few ms."""
MESSAGE_OPS = 512
CARRIED_MAX = 4096
WAITERS_MAX = 8192


_ANSWERS = (DropDone, Checked, Copied)

Surplus = Mapping[int, int]
"""Generations of committed slots that a master has no use for, and a PutAnswer of each."""

NOTHING: Surplus = {}


Seen = Callable[[Surplus | Unavailable], None]
"""Told once the masters have what somebody waits for, or that this can't be known. Under the node's lock."""


class Wait:
    """Somebody waits until a master has a serial. All calls under the node's lock, but for `leave`."""

    __slots__ = ("new", "over", "parts", "seen", "serial", "surplus", "unbroken")

    def __init__(self, serial: int | None, seen: Seen, *, unbroken: bool) -> None:
        self.over = False
        """Whether it has been told, or wants to be no more."""
        self.parts: list[Wait] = []
        """Of several streams, where it is for all of those."""
        self.serial = serial  # None: until the inventory under way has ended
        self.seen = seen
        self.unbroken = unbroken
        self.new = False
        """Whether the master can refuse nothing of it: that it is heard of is enough."""
        self.surplus: Surplus = NOTHING

    def end(self, outcome: Surplus | Unavailable) -> None:
        """Tells it, unless it is over."""
        if not self.over:
            self.over = True
            self.seen(outcome)

    def leave(self) -> None:
        """It wants to be told no more, and makes room for others."""
        self.over = True
        for part in self.parts:
            part.leave()


class ReportStream:
    """Takes ops, makes messages, follows acknowledgements. All calls under the node's lock."""

    def __init__(
        self,
        segment: bytes,
        open_inventory: Callable[[], Inventory],
        new_stream: Callable[[], int],
        *,
        shard: int = 0,
        window: int = WINDOW,
        obeyed: Callable[[], list[Order]] = list,
        next_generation: Callable[[], int] = lambda: 0,
        queued_rows_max: int = QUEUED_ROWS_MAX,
        news: set[int] | None = None,
    ) -> None:
        """`news`: shards that have something to tell, of all streams of a segment."""
        self._news = set() if news is None else news
        self._segment = segment
        self._shard = shard
        self._open_inventory = open_inventory
        self._new_stream = new_stream
        self._window = window
        self._obeyed = obeyed
        self._next_generation = next_generation
        self._queued_rows_max = queued_rows_max
        self._stream = -1
        self._epoch = -1
        self._sequence = 0
        self._opened = False
        self._serial = 0
        self._acked_serial = 0
        self._first_serial = 0
        # Of the last commit that no master can refuse (whoever waits for it asks under the same hold of the lock), of the last
        # one that may be refused, and up to which the master hears before it answers anybody.
        self._new_serial = self._old_serial = self._heard_serial = -1
        self._inventory: Inventory | None = None
        self._inventory_serial: int | None = None
        self._queue: deque[tuple[int, Op, int]] = deque()
        self._queued_rows = 0
        self._unacked: deque[tuple[int, int]] = deque()  # (sequence, last serial in it)
        # Answers to the master that no inventory repeats: they are sent again on a new stream.
        self._carried: dict[int, Op] = {}
        self._waits: list[Wait] = []
        self.streams_started = 0

    # ------------------------------------------------------------ what happened

    @property
    def naming(self) -> bool:
        """Whether an inventory is being read."""
        return self._inventory is not None

    def is_current(self, stream: int) -> bool:
        """Whether this is the stream that is being sent, not one before it."""
        return stream == self._stream

    @property
    def opening(self) -> bool:
        """Whether there is a master that has not taken the first message."""
        return self.connected and not self._opened

    @property
    def connected(self) -> bool:
        """Whether there is a master to report to."""
        return self._stream >= 0

    @property
    def settled(self) -> bool:
        """Whether there is one that knows all that the segment holds: nothing but news is to be told."""
        return (
            self._opened and self._inventory is None and self._acked_serial >= (self._inventory_serial or 0)
        )

    @property
    def idle(self) -> bool:
        """Whether the same holds, and nothing is on its way."""
        return self.settled and not self._unacked

    def emit(self, op: Op, *, new: bool = False) -> int:
        """Queues an op, and says what to wait for until the master has it. `new`: commits that it can't refuse."""
        serial = self._push(op)
        if new:
            self._new_serial = serial
        elif isinstance(op, Entries):
            self._old_serial = serial
        if isinstance(op, _ANSWERS):
            if len(self._carried) >= CARRIED_MAX:
                del self._carried[next(iter(self._carried))]
            self._carried[serial] = op
        if self._queued_rows > self._queued_rows_max:
            self.restart()
        return serial

    def connect(self, epoch: int) -> None:
        """A master takes reports now. One of another epoch isn't owed answers to what an earlier one asked."""
        if epoch != self._epoch:
            self._carried.clear()
        self._epoch = epoch
        self._stream = 0
        self.restart()

    def disconnect(self) -> None:
        """No master. Nothing is queued: the next stream's inventory will tell."""
        self._stream = -1
        self._clear()

    def restart(self) -> None:
        """A new stream: gap or overflow."""
        if not self.connected:
            return
        self._clear()
        self._stream = self._new_stream()
        words = [word for order in self._obeyed() for word in order]
        self._push(Obeyed(pack_u64(words), self._next_generation()))
        self._inventory = self._open_inventory()
        self._news.add(self._shard)
        self.streams_started += 1

    def _clear(self) -> None:
        self._news.discard(self._shard)
        self._queue.clear()
        self._queued_rows = 0
        self._unacked.clear()
        self._sequence = 0
        self._opened = False
        self._first_serial = self._serial + 1
        self._inventory = self._inventory_serial = None
        broken = [wait for wait in self._waits if wait.unbroken]
        self._waits = [wait for wait in self._waits if not wait.unbroken]
        self._new_serial = self._heard_serial = -1
        for wait in self._waits:
            wait.serial = None
        for wait in broken:
            wait.end(Unavailable(peer="the master", retry_in_s=0.0))

    def _push(self, op: Op) -> int:
        self._serial += 1
        if self._stream >= 0:
            rows = len(op.slots) // 4 if isinstance(op, (Entries, Freed, Moved)) else 1
            self._news.add(self._shard)
            self._queue.append((self._serial, op, rows))
            self._queued_rows += rows
        return self._serial

    # ------------------------------------------------------------ sending

    def next_report(self) -> Report | None:
        """The next message to send, or None while there is nothing to say or too much is unacknowledged."""
        if self._stream < 0 or len(self._unacked) >= self._window:
            return None
        if not self._queue and self._inventory is None:
            return None
        had_inventory = self._inventory is not None
        if self._inventory is not None and self._queued_rows < MESSAGE_ROWS:
            self._read_inventory(self._inventory)
        ops: list[Op] = []
        rows, last = 0, self._acked_serial
        while self._queue and rows < MESSAGE_ROWS and len(ops) < MESSAGE_OPS:
            last, op, op_rows = self._queue.popleft()
            ops.append(op)
            rows += op_rows
        self._queued_rows -= rows
        if not self._queue and self._inventory is None:
            self._news.discard(self._shard)
        if not ops and not had_inventory:
            return None
        report = Report(self._segment, self._stream, self._sequence, ops, self._shard, self._epoch)
        self._unacked.append((self._sequence, last))
        self._sequence += 1
        return report

    def _read_inventory(self, inventory: Inventory) -> None:
        for page in inventory.next_entries():
            self._push(page)
        if not inventory.done:
            return
        self._inventory = None
        self._inventory_serial = self._push(InventoryEnd())
        for wait in self._waits:
            if wait.serial is None:
                wait.serial = self._inventory_serial
        carried = [op for serial, op in self._carried.items() if serial < self._first_serial]
        self._carried = {serial: op for serial, op in self._carried.items() if serial >= self._first_serial}
        for op in carried:
            self._carried[self._push(op)] = op

    def acknowledged(self, stream: int, sequence: int, surplus: Surplus | None = None) -> None:
        """The master has taken all messages of this stream up to `sequence`. `surplus`: of the last one."""
        if stream != self._stream:
            return
        self._opened = True
        while self._unacked and self._unacked[0][0] <= sequence:
            self._acked_serial = max(self._acked_serial, self._unacked.popleft()[1])
        acked = self._acked_serial
        if self._carried:
            for serial in [serial for serial in self._carried if self._first_serial <= serial <= acked]:
                del self._carried[serial]
        if not self._waits:
            return
        if surplus:
            for wait in self._waits:
                wait.surplus = {**wait.surplus, **surplus}
        if len(self._waits) == 1:  # as where one puts at a time
            (wait,) = self._waits
            if wait.serial is not None and wait.serial <= acked:
                self._waits = []
                wait.end(wait.surplus)
            return
        done = [wait for wait in self._waits if wait.serial is not None and wait.serial <= acked]
        if done:
            self._waits = [wait for wait in self._waits if wait.serial is None or wait.serial > acked]
            for wait in done:
                wait.end(wait.surplus)

    def heard(self, stream: int, sequence: int) -> None:
        """The master answers nobody before it has taken the messages of this stream up to `sequence`: for what is new, that
        is as good as an acknowledgement."""
        if stream != self._stream or not self.settled:
            return
        serial = max((last for number, last in self._unacked if number <= sequence), default=-1)
        self._heard_serial = serial
        if any(wait.new for wait in self._waits):
            waits, self._waits = self._waits, []
            heard: list[Wait] = []
            for wait in waits:
                told = wait.new and wait.serial is not None and wait.serial <= serial
                (heard if told else self._waits).append(wait)
            for wait in heard:
                wait.end(wait.surplus)

    def gap(self, stream: int) -> None:
        """The master misses a message of this stream."""
        if stream == self._stream:
            self.restart()

    # ------------------------------------------------------------ waiting

    def watch(self, serial: int, seen: Seen, *, unbroken: bool = False) -> Wait:
        """`seen` is told, maybe before this returns, once the master has what `emit` returned this serial for: what it had
        no use for since. `unbroken`: on this very stream; Unavailable where another one begins first. Whoever waits
        bounds the wait, and leaves it then. Raises Unavailable."""
        begun = serial >= self._first_serial
        wait = Wait(serial if begun else self._inventory_serial, seen, unbroken=unbroken)
        # A commit may have been several ops: none before may be open that could be refused.
        wait.new = serial == self._new_serial and self._old_serial <= self._acked_serial
        if serial <= self._acked_serial or (wait.new and serial <= self._heard_serial):
            wait.end(NOTHING)
            return wait
        if unbroken and not begun:
            wait.end(Unavailable(peer="the master", retry_in_s=0.0))
            return wait
        if len(self._waits) >= WAITERS_MAX:
            self._waits = [one for one in self._waits if not one.over]
            if len(self._waits) >= WAITERS_MAX:
                raise Unavailable(peer="the master", retry_in_s=1.0)
        self._waits.append(wait)
        return wait

    def wait(self, serial: int, *, unbroken: bool = False) -> Future[Surplus]:
        """The same as a future, for threads; whoever waits cancels it."""
        return as_future(lambda seen: self.watch(serial, seen, unbroken=unbroken))

    @property
    def queued_rows(self) -> int:
        """Rows that wait to be sent."""
        return self._queued_rows

    @property
    def unacked(self) -> int:
        """Messages that wait for their acknowledgement."""
        return len(self._unacked)

    def validate(self) -> None:
        """Raises AssertionError where the state contradicts itself."""
        assert self._queued_rows == sum(rows for _, _, rows in self._queue)
        assert len(self._unacked) <= self._window
        serials = [serial for serial, _, _ in self._queue]
        assert serials == sorted(serials)
        assert [sequence for sequence, _ in self._unacked] == list(
            range(self._sequence - len(self._unacked), self._sequence)
        )
        assert all(wait.serial is None or wait.serial > self._acked_serial for wait in self._waits)
        assert self.connected or not (self._queue or self._unacked or self._inventory)
        assert (self._shard in self._news) is (bool(self._queue) or self._inventory is not None)


def as_future(watch: Callable[[Seen], Wait]) -> Future[Surplus]:
    """Done when `watch` tells what it was given; cancelled, it makes room for others."""
    future: Future[Surplus] = Future()

    def seen(outcome: Surplus | Unavailable) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Unavailable):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    wait = watch(seen)

    future.add_done_callback(lambda _: wait.leave())
    return future
