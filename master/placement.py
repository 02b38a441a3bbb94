"""Which node a put goes to: one on the writer's host, else any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moonpool.master.node import Node
from moonpool.master.nodes import Nodes


def place(nodes: Nodes, size_bytes: int, promised: Mapping[int, int], host: str, now_s: float) -> Node | None:
    """For a writer on that host. Its own host is asked first and wins even when it is full: its node makes room, and the
    copy needs no network.

    Nodes where its puts fail are shunned for a while (Node.put_failed): one that it can't reach, or where all is
    pinned, would else have most room, or the least written, for ever.
    """
    best = choose(nodes.writable_on(host), size_bytes, promised, host, now_s) if host else None
    if best is None or best.is_shunned(host, now_s):
        other = choose(nodes.writable(), size_bytes, promised, host, now_s)
        if best is None or (other is not None and not other.is_shunned(host, now_s)):
            best = other
    return best


def choose(
    nodes: Iterable[Node], size_bytes: int, promised: Mapping[int, int], host: str, now_s: float
) -> Node | None:
    """The node with most room, of those that take objects of `size_bytes`; of full ones, which evict for each put, the
    one of whose memory the smallest part was written anew: so all of them evict what was not used for about as long.
    By room alone objects of one size would go to one full node for ever, while the others kept what nobody reads.

    Promised bytes count as used, so that writers who ask at the same moment don't all go to the same node. Equal ones
    go by segment id.
    """
    fitting = (node for node in nodes if node.info.page_bytes >= size_bytes)
    return max(fitting, key=lambda node: node.appeal(promised.get(node.index, 0), host, now_s), default=None)
