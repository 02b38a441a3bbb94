"""NodeCore: the only authority over a segment's slots and headers. Pure logic over a Memory.

Every call is made under `lock`, which its callers (RPC handlers, lane threads, the space keeper) hold for one call at
a time. What changed is told to the Sink before the call returns.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.schemas.errors import InvalidParams, Overloaded
from moonpool.schemas.header import SLOT_INDEX_BITS, Headers, SlotState
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Begin, BeginItem, Granted, PutAhead, Status, View
from moonpool.schemas.packed import U8, U32, U64, count_of, u32s, u64s
from moonpool.schemas.runs import SHARDS_MAX
from moonpool.store_client.node.ahead import entries_of, name
from moonpool.store_client.node.alike import begin_alike
from moonpool.store_client.node.annex import Annex, Facts, SessionRecord
from moonpool.store_client.node.drops import Drops
from moonpool.store_client.node.headers import words_of
from moonpool.store_client.node.inventory import keyspace_words_in_use
from moonpool.store_client.node.items import BLOCKS_MAX, Prepared, prepare
from moonpool.store_client.node.keyspaces import Keyspaces
from moonpool.store_client.node.memory import Memory
from moonpool.store_client.node.moves import Moves
from moonpool.store_client.node.puts import LANES, OK, Put, Writers
from moonpool.store_client.node.slots import Sink, Slots, entries
from moonpool.store_client.node.whole_puts import FEW, Stored, store

ITEMS_MAX = 1024
FORGET_EVERY_S = 1.0
"""Looking for keyspaces without an object reads every header under the lock, and anyone may ask for it."""
PUT_ID_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a Begin lacked: slots by slot size. Nothing was granted."""

    slots: dict[int, int]

    @property
    def size_bytes(self) -> int:
        """Bytes of the slots that were missing."""
        return sum(size * count for size, count in self.slots.items())


class NodeCore:
    """Begin, commit, revoke, drop, move. Waiting and dying are told from outside."""

    def __init__(self, memory: Memory, sink: Sink) -> None:
        self.lock = threading.Lock()
        self.head = memory.head
        self.keyspaces = Keyspaces()
        self.writers = Writers()
        self.slots = Slots(memory, self.keyspaces, sink)
        self.drops = Drops(self.slots, self.writers)
        self.moves = Moves(self.slots, self.drops)
        self.shards = SHARDS_MAX
        self.reported: dict[int, int] = {}
        """What a commit that answers now waits for until it is visible: by shard a serial of its report stream."""
        self.generations: list[Sequence[int] | U64] = []
        """Of the blocks of each put that a commit answers now; 0 where there is no slot. Empty: of an earlier one."""
        counters = ("blocks_committed", "blocks_gone", "puts_revoked", "no_space")
        moved_bytes = ("local_bytes", "small_bytes_read", "small_bytes_written")
        self.counters = dict.fromkeys((*counters, *moved_bytes), 0)
        self._sink = sink
        self._last_serials: dict[int, int] = {}
        self._annex = Annex(memory.buffer)
        self._records: dict[int, SessionRecord] = {}
        self._forgot_s = float("-inf")

    # ------------------------------------------------------------ keyspaces and sessions

    def restore(self) -> list[SessionRecord]:
        """Takes over what the segment's head says: keyspaces, and sessions, which are returned."""
        for spec in self._annex.facts.specs:
            self.keyspaces.add(spec)
        for record in self._annex.facts.sessions:
            self.writers.add(record.session)
            self._records[record.session] = record
        return list(self._records.values())

    def register(self, spec: KeyspaceSpec, now_s: float = 0.0) -> bytes:
        """The digest, once the segment's head holds the spec; unused ones make room, FORGET_EVERY_S at the soonest.
        Raises InvalidParams, Overloaded (the head is full)."""
        digest, new = self.keyspaces.add(spec)
        if not new:
            return digest
        try:
            try:
                self._store_annex()
            except Overloaded:
                if now_s - self._forgot_s < FORGET_EVERY_S:
                    raise
                self._forgot_s = now_s
                self._forget_unused_keyspaces(digest)
                self._store_annex()
        except Overloaded:
            self.keyspaces.discard(digest)
            raise
        return digest

    def open_session(self, record: SessionRecord) -> None:
        """Idempotent. The head names the lock before anything is granted, for the node that adopts this segment."""
        self.writers.add(record.session)
        if self._records.get(record.session) == record:
            return
        before = dict(self._records)
        self._records[record.session] = record
        try:
            self._store_annex()
        except Overloaded:
            self._records = before
            raise

    def end_session(self, session: int) -> None:
        """Its writer is dead: no byte of its open grants can still be written."""
        writer = self.writers.get(session)
        self.revoke(session, list(writer.puts))
        self.writers.remove(session)
        if self._records.pop(session, None) is not None:
            self._store_annex()

    def _store_annex(self) -> None:
        self._annex.store(Facts(self.keyspaces.specs(), list(self._records.values())))

    def _forget_unused_keyspaces(self, but: bytes) -> None:
        used = keyspace_words_in_use(self.slots)
        for spec in self.keyspaces.specs():
            digest = spec.digest()
            if digest != but and int.from_bytes(digest[:8], "little") not in used:
                self.keyspaces.discard(digest)

    def use_shards(self, shards: int) -> None:
        """How many the cluster has: of any further one nothing is taken."""
        self.shards = max(1, min(shards, SHARDS_MAX))

    # ------------------------------------------------------------ writing

    def count(self, item: BeginItem) -> int:
        """Blocks of an item. Raises KeyspaceUnknown, InvalidParams."""
        return count_of(item.hashes, self.keyspaces.spec(item.keyspace).hash_bytes, "hashes")

    def begin(self, session: int, request: Begin, *, partial: bool, flags: int = 0) -> Granted | Shortage:
        """Grants slots for every block, headers WRITING before this returns.

        Where space is short: nothing (Shortage), or with `partial` what there is, the rest NO_SPACE. Idempotent.
        `flags`: of the headers.
        Raises NotFound (session), KeyspaceUnknown, InvalidParams, Overloaded.
        """
        writer = self.writers.get(session)
        known = writer.answer(request.put_id)
        if known is not None:
            return known
        writer.check_room()
        if not 0 <= request.put_id <= PUT_ID_MAX:
            raise InvalidParams(field="begin.put_id", value=request.put_id, allowed="a u64")
        if not 0 < len(request.items) <= ITEMS_MAX:
            raise InvalidParams(
                field="begin.items", value=len(request.items), allowed=f"1 to {ITEMS_MAX} items"
            )
        if len(request.items) == 1 and not flags:
            item, spec = request.items[0], self.keyspaces.spec(request.items[0].keyspace)
            alike = begin_alike(self.slots, session, request.put_id, item, spec, self.shards)
            if alike is not None:
                writer.open(alike)
                return alike.granted()
        parts = [prepare(item, self.keyspaces.spec(item.keyspace), self.shards) for item in request.items]
        blocks = sum(len(part.headers) for part in parts)
        if blocks > BLOCKS_MAX:
            raise InvalidParams(
                field="begin.items", value=f"{blocks} blocks", allowed=f"{BLOCKS_MAX} blocks at most"
            )
        headers = parts[0].headers if len(parts) == 1 else np.concatenate([part.headers for part in parts])
        if flags:
            headers["flags"] = flags
        sizes = (
            parts[0].slot_bytes if len(parts) == 1 else np.concatenate([part.slot_bytes for part in parts])
        )
        slots, statuses, shortage = self._allocate(sizes)
        if shortage and not partial:
            self.slots.allocator.give(slots[statuses == Status.OK])
            return Shortage(shortage)
        self.counters["no_space"] += sum(shortage.values())
        put = self._place(session, request.put_id, headers, slots, statuses)
        put.larger = self.slots.bytes_of(slots[statuses == OK]) > int(sizes[statuses == OK].sum())
        self._write_keys(parts, put)
        writer.open(put)
        return put.granted()

    def _allocate(self, slot_bytes: U64) -> tuple[U32, U8, dict[int, int]]:
        """(slots, statuses, missing slots by size), one entry a block."""
        allocator, page_bytes = self.slots.allocator, self.slots.layout.page_bytes
        slots = np.zeros(len(slot_bytes), dtype=np.uint32)
        statuses = np.zeros(len(slot_bytes), dtype=np.uint8)
        shortage: dict[int, int] = {}
        size = int(slot_bytes[0])
        if size <= page_bytes and (slot_bytes == size).all():  # the usual case
            taken = allocator.take(size, len(slot_bytes))
            if len(taken) == len(slot_bytes):
                return taken, statuses, shortage
            allocator.give(taken)
        for size in np.unique(slot_bytes).tolist():
            blocks = np.flatnonzero(slot_bytes == size)
            if size > page_bytes:
                statuses[blocks] = Status.TOO_LARGE
                continue
            taken = allocator.take_or_larger(size, len(blocks))
            slots[blocks[: len(taken)]] = taken
            if len(taken) < len(blocks):
                statuses[blocks[len(taken) :]] = Status.NO_SPACE
                shortage[size] = len(blocks) - len(taken)
        return slots, statuses, shortage

    def _place(self, session: int, put_id: int, headers: Headers, slots: U32, statuses: U8) -> Put:
        """Puts WRITING headers in place and makes the put."""
        count = len(slots)
        blocks = np.flatnonzero(statuses == OK)
        whole = len(blocks) == count
        generations = self.slots.new_generations(len(blocks))
        if not whole:
            granted_generations, generations = generations, np.zeros(count, dtype=np.uint64)
            generations[blocks] = granted_generations
        headers["word"] = words_of(SlotState.WRITING, generations)
        headers["session"] = session
        headers["put_id"] = put_id
        granted = slots if whole else slots[blocks]
        self.slots.headers.place(self.slots.rows(granted), headers if whole else headers[blocks])
        self.slots.count_writing(granted, 1)
        return Put(session, put_id, statuses, slots, generations, np.zeros(count, dtype=np.bool_))

    def _write_keys(self, parts: list[Prepared], put: Put) -> None:
        """Key text goes right behind the payload: the client writes the payload only."""
        first = 0
        memory = self.slots.data.data  # a memoryview takes a slice in a tenth of an array's time
        for part in parts:
            if part.keys:
                here = slice(first, first + len(part.headers))
                granted = np.flatnonzero(put.statuses[here] == OK)
                slots = put.slots[here][granted]
                sizes = self.slots.allocator.slot_bytes[slots >> SLOT_INDEX_BITS]
                starts = self.slots.layout.data_offsets(slots, sizes) + part.headers["length"][
                    granted
                ].astype(np.int64)
                for block, start in zip(granted.tolist(), starts.tolist(), strict=True):
                    key = part.keys[block]
                    memory[start : start + len(key)] = key
            first += len(part.headers)

    def fill(self, granted: Granted, item: BeginItem, payload: View, counter: str = "local_bytes") -> None:
        """Writes the payloads of one of the node's own puts, back to back; those of blocks without a slot are left out.
        Raises InvalidParams where there are more or fewer bytes than `item.lengths` say."""
        lengths = u64s(item.lengths).tolist()
        if len(lengths) != len(granted.statuses) or sum(lengths) != len(payload):
            raise InvalidParams(
                field="payload", value=f"{len(payload)} bytes", allowed="the sum of the item's lengths"
            )
        slots = u32s(granted.slots)
        sizes = self.slots.allocator.slot_bytes[slots >> SLOT_INDEX_BITS]
        starts = self.slots.layout.data_offsets(slots, sizes).tolist()
        memory, at = self.slots.data.data, 0
        for status, start, length in zip(granted.statuses, starts, lengths, strict=True):
            if status == OK:
                memory[start : start + length] = payload[at : at + length]
                self.counters[counter] += length
            at += length

    def store(
        self, put_id: int, item: BeginItem, payload: View, counter: str = "local_bytes"
    ) -> bytes | Shortage:
        """Begin, fill and Commit of one of the node's own puts: one Status byte a block. `reported` as in `commit`.
        `counter`: of `counters`, what its bytes are added to.
        Where space is short nothing is stored. Raises KeyspaceUnknown, InvalidParams, Overloaded."""
        spec = self.keyspaces.spec(item.keyspace)
        if spec.kind is not Kind.FLAT or len(item.hashes) > FEW * spec.hash_bytes:
            granted = self.begin(LANES, Begin(LANES, put_id, [item]), partial=False)
            return granted if isinstance(granted, Shortage) else self.finish(granted, item, payload, counter)
        stored = store(self.slots, item, payload, spec, self.shards)
        if not isinstance(stored, Stored):
            return Shortage(stored)
        self.reported, self.generations = {}, [stored.generations]
        if stored.entries is not None:
            self.counters["blocks_committed"] += stored.statuses.count(Status.OK)
            self.counters[counter] += stored.size_bytes
            serial = self._sink.emit(stored.entries, item.shard)
            self.reported[item.shard] = self._last_serials[item.shard] = serial
        return stored.statuses

    def finish(self, granted: Granted, item: BeginItem, payload: View, counter: str = "local_bytes") -> bytes:
        """What is left of `store` once its Begin was granted."""
        try:
            self.fill(granted, item, payload, counter)
        except BaseException:
            self.revoke(LANES, [granted.put_id])
            raise
        return self.commit(LANES, [granted.put_id])[0]

    def commit(self, session: int, put_ids: list[int]) -> list[bytes]:
        """One Status byte a block for each put, in the order of its Begin: GONE where it was dropped meanwhile.
        Unknown puts: no bytes. `reported` then says what a visible commit waits for. Raises NotFound (session)."""
        writer = self.writers.get(session)
        answers = []
        self.reported, self.generations = {}, []
        for put_id in put_ids:
            put = writer.puts.get(put_id)
            if put is None:
                answers.append(writer.finished.get(put_id, b""))
                self.generations.append(())
                self.reported = dict(self._last_serials)  # it is among them
            else:
                answers.append(self._commit(put))
                self.generations.append(put.generations)
                writer.close(put, answers[-1])
        return answers

    def _commit(self, put: Put) -> bytes:
        whole = put.item if not np.count_nonzero(put.doomed) else None  # the usual case
        if whole is not None:
            slots, generations = put.slots, put.generations
        else:
            slots, generations, gone = self.drops.leave_doomed(put)
            self.counters["blocks_gone"] += gone
        self.slots.count_writing(slots, -1)
        if len(slots):
            rows = self.slots.rows(slots)
            self.slots.headers.turn(rows, words_of(SlotState.COMMITTED, generations))
            self.slots.committed += len(slots)
            self.counters["blocks_committed"] += len(slots)
            if whole is not None:
                lengths = u64s(whole.lengths)
                ops = [(whole.shard, entries_of(whole, b"", slots, generations, whole.lengths))]
            else:
                headers = self.slots.headers.snapshot(rows)
                lengths, ops = headers["length"], entries(headers, slots, self.keyspaces)
            if put.session != LANES:
                self.counters["local_bytes"] += int(lengths.sum())
            for shard, op in ops:
                self.reported[shard] = self._last_serials[shard] = self._sink.emit(op, shard)
            self._sink.written(slots, generations)
        return put.statuses.tobytes()

    def put_ahead(self, request: PutAhead) -> bytes:
        """Names and commits a put whose slots were granted ahead: one Status byte a block. All are GONE where there is no
        such put. `reported` as in `commit`. Raises NotFound (session), KeyspaceUnknown, InvalidParams."""
        writer, item = self.writers.get(request.session), request.item
        put = writer.puts.get(request.put_id)
        if put is None or not put.ahead_bytes:
            told, gone = writer.finished.get(request.put_id, b""), bytes([Status.GONE]) * self.count(item)
            self.revoke(request.session, [request.put_id])  # its writer has copied what it had to copy
            self.reported, self.generations = dict(self._last_serials), [()]  # it may be among them
            return told if len(told) == len(gone) else gone
        named = name(self.slots, put, item, self.keyspaces.spec(item.keyspace), self.shards)
        statuses = bytes(len(named.generations))
        writer.close(put, statuses)
        self.counters["blocks_committed"] += len(statuses)
        self.counters["local_bytes"] += named.size_bytes
        serial = self._last_serials[item.shard] = self._sink.emit(named.entries, item.shard)
        self.reported, self.generations = {item.shard: serial}, [named.generations]
        self._sink.written(put.slots[: len(statuses)], named.generations)
        return statuses

    def revoke(self, session: int, put_ids: list[int]) -> int:
        """Gives these puts' slots back; their writer says (or its death does) that it writes no more.
        Returns how many were open. Raises NotFound (session)."""
        writer = self.writers.get(session)
        puts = [writer.puts[put_id] for put_id in put_ids if put_id in writer.puts]
        for put in puts:
            blocks = put.open_blocks()
            self.slots.count_writing(put.slots[blocks], -1)
            self.slots.free(put.slots[blocks], put.generations[blocks])
            put.statuses[blocks] = Status.GONE
            writer.close(put, put.statuses.tobytes())
        self.counters["puts_revoked"] += len(puts)
        return len(puts)

    def session_heartbeat(self, session: int, open_put_ids: list[int], newest_put_id: int) -> int:
        """Revokes the session's puts up to `newest_put_id` that it doesn't list: answers that were lost."""
        listed = set(open_put_ids)
        lost = [put for put in self.writers.get(session).puts if put <= newest_put_id and put not in listed]
        return self.revoke(session, lost)

    def lane_begin(self, put_id: int, item: BeginItem, *, partial: bool) -> Granted | Shortage:
        """Begin of the node's own threads; put ids are the lanes' own."""
        return self.begin(LANES, Begin(LANES, put_id, [item]), partial=partial)

    def validate(self) -> None:
        """Raises AssertionError where headers, allocator and puts contradict each other."""
        self.drops.obeyed.validate()
        self.slots.validate(self.writers.all_puts())
