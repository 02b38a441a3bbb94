"""What a lane's peer brings: begin, payload and commit in one exchange."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from moonpool.schemas.access import Identity
from moonpool.schemas.errors import DeadlineExceeded, InvalidParams, MoonpoolError, Unavailable
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import BeginItem, Failed, Granted, LaneWrite, Message, Status
from moonpool.schemas.packed import u64s
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.items import BLOCKS_MAX
from moonpool.store_client.node.lane_io import receive
from moonpool.store_client.node.lane_limits import deadline_of, total_of
from moonpool.store_client.node.lane_places import places, scrap
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.report_streams import Visible
from moonpool.store_client.node.reports import Surplus
from moonpool.store_client.node.seen_puts import with_surplus, without_proof
from moonpool.store_client.rpc.access import check_role
from moonpool.store_client.rpc.server_spans import ServerSpans


@dataclass(frozen=True, slots=True)
class LaneHooks:
    """What a lane asks of its node. `begin`, `register` and what `visible` returns block, and bound their time. `settled`: see
    SeenPuts; it and `visible` are called under the node's lock."""

    begin: Callable[[int, BeginItem], Granted]
    register: Callable[[KeyspaceSpec], bytes]
    visible: Visible
    visible_wait_s: float
    put_ids: itertools.count[int]
    settled: Callable[[int], bool]
    spans: ServerSpans | None = None


class LaneWrites:
    """Of one lane, by its thread."""

    def __init__(self, core: NodeCore, hooks: LaneHooks, peer: str) -> None:
        self._core = core
        self._hooks = hooks
        self._peer = peer
        self._memory = core.slots.data.data  # a memoryview: slices of it cost no copy
        self.size_bytes = 0
        """Of all payloads so far."""

    def take(self, sock: socket.socket, message: LaneWrite, identity: Identity) -> Message:
        """Takes the payload off the socket, and returns the answer. The payload of refused objects is thrown away.
        Raises MoonpoolError where the lane is of no use any more."""
        if len(message.item.lengths) % 8 or len(message.item.lengths) > 8 * BLOCKS_MAX:
            raise InvalidParams(field="write.lengths", value="a column", allowed=f"u64, {BLOCKS_MAX} at most")
        lengths: list[int] = u64s(message.item.lengths).tolist()
        total = total_of(lengths)
        deadline_s = deadline_of(total)
        put_id = next(self._hooks.put_ids)
        try:
            granted = self._begin(put_id, message, identity)
        except MoonpoolError as error:
            receive(sock, scrap(total), deadline_s, self._peer)
            return Failed(error.code, str(error))
        if granted is None:
            receive(sock, scrap(total), deadline_s, self._peer)
            count = len(lengths)
            return Granted(message.put_id, bytes([Status.BUSY]) * count, bytes(4 * count), bytes(8 * count))
        try:
            receive(sock, places(self._core.slots, self._memory, granted, lengths), deadline_s, self._peer)
        except BaseException:
            with self._core.lock:
                self._core.revoke(LANES, [put_id])
            raise
        self.size_bytes += total
        try:
            statuses = self._commit(put_id, message)
        except MoonpoolError as error:
            return Failed(error.code, str(error))
        return Granted(message.put_id, statuses, granted.slots, granted.generations)

    def _begin(self, put_id: int, message: LaneWrite, identity: Identity) -> Granted | None:
        """None where a direct put is to be asked for. Raises MoonpoolError."""
        check_role(identity, LaneWrite)
        with self._core.lock:
            self._core.keyspaces.check_visible([message.item.keyspace], identity)
            if message.direct and not self._hooks.settled(message.item.shard):
                return None
        return self._hooks.begin(put_id, message.item)

    def _commit(self, put_id: int, message: LaneWrite) -> bytes:
        """A Status byte an object, once the masters have them where that is asked for. Raises MoonpoolError."""
        core = self._core
        with core.lock:
            statuses = core.commit(LANES, [put_id])
            if not message.visible and not message.direct:
                return statuses[0]
            generations = core.generations
            seen = self._hooks.visible(core.reported, unbroken=message.direct)
        try:
            return with_surplus(statuses, generations, self._await(seen))[0]
        except Unavailable:  # of a direct put: another stream began
            return without_proof(statuses)[0]

    def _await(self, seen: Future[Surplus]) -> Surplus:
        try:
            return seen.result(self._hooks.visible_wait_s)
        except (TimeoutError, CancelledError):
            seen.cancel()
            wait_s = self._hooks.visible_wait_s
            raise DeadlineExceeded(peer="the master", what="a report", timeout_s=wait_s) from None
