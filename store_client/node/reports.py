"""The one ordered stream of numbered messages from a segment to one shard's master: pure state, no socket.

Each op is queued at the moment its header changed. Inventory pages are read from the headers when there is room for
them and queued behind what is there, so the master sees every slot's changes in their order. Whatever breaks the order
(a gap, an overflow, a reconnect, a new epoch) starts a new stream with a full inventory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

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


Surplus = Mapping[int, int]
"""Generations of committed slots that a master has no use for, and a PutAnswer of each."""


@dataclass(slots=True, eq=False)
class _Waiter:
    serial: int | None  # None: until the inventory under way has ended
    future: Future[Surplus]
    unbroken: bool
    surplus: dict[int, int] = field(default_factory=dict)


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
    ) -> None:
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
        self._inventory: Inventory | None = None
        self._inventory_serial: int | None = None
        self._queue: deque[tuple[int, Op, int]] = deque()
        self._queued_rows = 0
        self._unacked: deque[tuple[int, int]] = deque()  # (sequence, last serial in it)
        # Answers to the master that no inventory repeats: they are sent again on a new stream.
        self._carried: dict[int, Op] = {}
        self._waiters: list[_Waiter] = []
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

    def emit(self, op: Op) -> int:
        """Queues an op, and says what to wait for until the master has it."""
        serial = self._push(op)
        if isinstance(op, DropDone | Checked | Copied):
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
        self.streams_started += 1

    def _clear(self) -> None:
        self._queue.clear()
        self._queued_rows = 0
        self._unacked.clear()
        self._sequence = 0
        self._opened = False
        self._first_serial = self._serial + 1
        self._inventory = self._inventory_serial = None
        broken = [waiter for waiter in self._waiters if waiter.unbroken]
        self._waiters = [waiter for waiter in self._waiters if not waiter.unbroken]
        for waiter in self._waiters:
            waiter.serial = None
        for waiter in broken:
            if waiter.future.set_running_or_notify_cancel():
                waiter.future.set_exception(Unavailable(peer="the master", retry_in_s=0.0))

    def _push(self, op: Op) -> int:
        self._serial += 1
        if self.connected:
            rows = len(op.slots) // 4 if isinstance(op, Entries | Freed | Moved) else 1
            self._queue.append((self._serial, op, rows))
            self._queued_rows += rows
        return self._serial

    # ------------------------------------------------------------ sending

    def next_report(self) -> Report | None:
        """The next message to send, or None while there is nothing to say or too much is unacknowledged."""
        if not self.connected or len(self._unacked) >= self._window:
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
        for waiter in self._waiters:
            if waiter.serial is None:
                waiter.serial = self._inventory_serial
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
        for serial in [
            serial for serial in self._carried if self._first_serial <= serial <= self._acked_serial
        ]:
            del self._carried[serial]
        for waiter in self._waiters if surplus else ():
            waiter.surplus |= surplus or {}
        done = [w for w in self._waiters if w.serial is not None and w.serial <= self._acked_serial]
        if done:
            self._waiters = [w for w in self._waiters if w.serial is None or w.serial > self._acked_serial]
            for waiter in done:
                if waiter.future.set_running_or_notify_cancel():
                    waiter.future.set_result(waiter.surplus)

    def gap(self, stream: int) -> None:
        """The master misses a message of this stream."""
        if stream == self._stream:
            self.restart()

    # ------------------------------------------------------------ waiting

    def wait(self, serial: int, *, unbroken: bool = False) -> Future[Surplus]:
        """Done once the master has what `emit` returned this serial for: what it had no use for since. `unbroken`: on
        this very stream; Unavailable where another one begins first. Whoever waits bounds the wait and cancels the
        future. Raises Unavailable."""
        future: Future[Surplus] = Future()
        if serial <= self._acked_serial:
            future.set_result({})
            return future
        if unbroken and serial < self._first_serial:
            future.set_exception(Unavailable(peer="the master", retry_in_s=0.0))
            return future
        self._waiters = [waiter for waiter in self._waiters if not waiter.future.cancelled()]
        if len(self._waiters) >= WAITERS_MAX:
            raise Unavailable(peer="the master", retry_in_s=1.0)
        self._waiters.append(
            _Waiter(serial if serial >= self._first_serial else self._inventory_serial, future, unbroken)
        )
        return future

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
        assert all(waiter.serial is None or waiter.serial > self._acked_serial for waiter in self._waiters)
        assert self.connected or not (self._queue or self._unacked or self._inventory)
