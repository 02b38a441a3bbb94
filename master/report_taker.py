"""Report streams on their way into the index: what is checked, and in which order things change."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from moonpool.master.node import Node
from moonpool.master.nodes import Nodes
from moonpool.master.outcome import Outcome, Push
from moonpool.master.replicas.replication import Replication
from moonpool.master.reports import acknowledgement, read_orders
from moonpool.master.restorer import Restorer
from moonpool.master.shard import ShardIndex
from moonpool.master.shard_set import ShardSet
from moonpool.master.step import Step
from moonpool.schemas.messages import Copied, Done, DropDone, Entries, InventoryEnd, Obeyed, Report
from moonpool.schemas.packed import u64s


class ReportTaker:
    """Of one master. `step_of`: (now, host, shard); `pushes`: what steps leave for nodes."""

    def __init__(
        self,
        shards: ShardSet,
        nodes: Nodes,
        restorer: Restorer,
        replication: Replication,
        step_of: Callable[[float, str, int], Step],
        pushes: Callable[[Iterable[Step]], list[Push]],
    ) -> None:
        self._shards = shards
        self._nodes = nodes
        self._restorer = restorer
        self._replication = replication
        self._step_of = step_of
        self._pushes = pushes

    def take(self, message: Report, now_s: float) -> Outcome:
        """Raises NotFound, WrongShard, StreamGap, and what is wrong with an op: nothing has changed then."""
        node = self._nodes.heard(message.segment, now_s)
        index = self._shards.for_report(message.shard, message.epoch)
        stream = node.stream(message.shard)
        stream.check(message.stream, message.sequence)
        ops = message.ops
        # News from a node at work, which nobody has asked for: the usual case.
        if (
            len(ops) == 1
            and type(ops[0]) is Entries
            and message.sequence
            and message.shard not in node.naming
        ):
            size_bytes = index.adopt(node.index, ops[0], now_s)
            if size_bytes is not None:
                stream.advance(message.stream, message.sequence)
                self._nodes.stored(node, size_bytes)
                return Outcome(Done(1))
        for op in ops:
            index.check(op)
        return self._take_all(message, now_s, node, index)

    def _take_all(self, message: Report, now_s: float, node: Node, index: ShardIndex) -> Outcome:
        step = self._step_of(now_s, "", message.shard)
        step.naming = message.sequence == 0 or message.shard in node.naming
        pushes: list[Push] = []
        confirmed: list[tuple[bytes, int]] = []
        if message.sequence == 0:
            index.start_inventory(node.index)
            node.naming.add(message.shard)
            node.obeys.add(message.shard)  # it reports to whose claim it has taken
            next_generation = 0
            for op in message.ops[:1]:
                if isinstance(op, Obeyed):
                    done = node.has_obeyed(message.shard, read_orders(op))
                    confirmed += [(message.segment, drop_id) for drop_id in done]
                    next_generation = op.next_generation
            again = node.retell(message.shard, self._shards.epoch(message.shard), next_generation)
            pushes += [(message.segment, drop) for drop in again]
        node.stream(message.shard).advance(message.stream, message.sequence)
        for op in message.ops:
            if isinstance(op, InventoryEnd):
                index.end_inventory(node.index, step)
                node.naming.discard(message.shard)
                self._nodes.inventory_complete(node, message.shard, self._shards)
            elif isinstance(op, DropDone):
                node.done(op.drop_id)
                confirmed.append((message.segment, op.drop_id))
            elif isinstance(op, Copied):
                self._replication.copied(node, message.shard, op, now_s, step)
            elif not isinstance(op, Obeyed):
                op = self._replication.admitted(self._restorer.admitted(op, node, step), node, step)
                index.apply(node.index, op, step)
                if isinstance(op, Entries) and not step.naming:  # an inventory is not put anew
                    self._nodes.stored(node, int(u64s(op.lengths).sum()))
        reply = acknowledgement(message, step)
        return Outcome(reply, pushes + self._pushes([step]), confirmed=tuple(confirmed))
