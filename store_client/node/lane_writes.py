"""What a lane's peer brings: begin, payload and commit in one exchange."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from dataclasses import dataclass

from moonpool.schemas.access import Identity
from moonpool.schemas.errors import DeadlineExceeded, InvalidParams, MoonpoolError
from moonpool.schemas.framing import encode_frame
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import BeginItem, Failed, Granted, LaneWrite, Status, encode
from moonpool.schemas.packed import u64s
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.items import BLOCKS_MAX
from moonpool.store_client.node.lane_answer import LaneAnswer
from moonpool.store_client.node.lane_io import receive
from moonpool.store_client.node.lane_limits import deadline_of, total_of
from moonpool.store_client.node.lane_places import places, scrap
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.report_streams import Watch
from moonpool.store_client.rpc.access import check_role
from moonpool.store_client.rpc.server_spans import ServerSpans


@dataclass(frozen=True, slots=True)
class LaneHooks:
    """What a lane asks of its node. `begin` and `register` block, and bound their time. `settled`: see SeenPuts; it and `watch`
    are called under the node's lock."""

    begin: Callable[[int, BeginItem], Granted]
    register: Callable[[KeyspaceSpec], bytes]
    watch: Watch
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

    def take(
        self, sock: socket.socket, request_id: int, message: LaneWrite, identity: Identity
    ) -> memoryview | bytes:
        """Takes the payload off the socket, and answers: what is left of that to be sent. The payload of refused objects is
        thrown away. Raises MoonpoolError where the lane is of no use any more."""
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
            return _failed(request_id, error)
        if granted is None:
            receive(sock, scrap(total), deadline_s, self._peer)
            count = len(lengths)
            granted = Granted(0, bytes([Status.BUSY]) * count, bytes(4 * count), bytes(8 * count))
            return _answer(request_id, message, granted, granted.statuses)
        try:
            receive(sock, places(self._core.slots, self._memory, granted, lengths), deadline_s, self._peer)
        except BaseException:
            with self._core.lock:
                self._core.revoke(LANES, [put_id])
            raise
        self.size_bytes += total
        try:
            return self._commit(sock, put_id, request_id, message, granted)
        except MoonpoolError as error:
            return _failed(request_id, error)

    def _begin(self, put_id: int, message: LaneWrite, identity: Identity) -> Granted | None:
        """None where a direct put is to be asked for. Raises MoonpoolError."""
        check_role(identity, LaneWrite)
        with self._core.lock:
            self._core.keyspaces.check_visible([message.item.keyspace], identity)
            if message.direct and not self._hooks.settled(message.item.shard):
                return None
        return self._hooks.begin(put_id, message.item)

    def _commit(
        self, sock: socket.socket, put_id: int, request_id: int, message: LaneWrite, granted: Granted
    ) -> memoryview | bytes:
        """What is left of the answer, once the masters have the objects where that is asked for. Raises MoonpoolError."""
        core = self._core
        with core.lock:
            statuses = core.commit(LANES, [put_id])[0]
            if not message.visible and not message.direct:
                return _answer(request_id, message, granted, statuses)
            generations = core.generations

            def frame(told: bytes) -> bytes:
                return _answer(request_id, message, granted, told)

            answer = LaneAnswer(sock, frame, statuses, generations)
            wait = self._hooks.watch(core.reported, answer.seen, unbroken=message.direct)
        if not answer.wait(self._hooks.visible_wait_s):
            with core.lock:  # under which it is told
                wait.leave()
            if not answer.wait(0.0):
                wait_s = self._hooks.visible_wait_s
                raise DeadlineExceeded(peer="the master", what="a report", timeout_s=wait_s)
        return answer.left


def _answer(request_id: int, message: LaneWrite, granted: Granted, statuses: bytes) -> bytes:
    reply = Granted(message.put_id, statuses, granted.slots, granted.generations)
    return encode_frame(request_id, encode(reply))


def _failed(request_id: int, error: MoonpoolError) -> bytes:
    return encode_frame(request_id, encode(Failed(error.code, str(error))))
