"""Reports that are heard before anybody is answered: what a node need not wait for.

A put is visible once the master has the node's report of it. It is as good where the report merely lies in the master's
socket, if the master empties that one before it answers anybody: whoever can know that the put was done asks later than
the node has sent. That holds for a Unix socket, into which a sender's bytes are put by the kernel as it sends, and so for
nodes that have come through the near door; over a network nobody knows what is under way.

Nor may the master refuse what is reported. It refuses what another node holds, so this is for a node that is alone in its
pool, and for objects that the node itself holds nothing of (store_client/node/names.py). A second node is let in once the
first one knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from moonpool.schemas.messages import Message
from moonpool.store_client.rpc.peer import Peer

END_WAIT_S = 1.0
"""For a node to say that it knows; one that stands still is cut off then, and can rely on nothing."""


class HeardFirst:
    """Of one master: the nodes' connections that are emptied first. Event loop only."""

    def __init__(self) -> None:
        self.peers: dict[Peer, None] = {}
        self._ends = 0
        """Under way."""
        self._dropped = asyncio.Event()
        self._hearing = False

    def hear(self, asks: Peer | None = None) -> None:
        """Takes in all that was reported by now, since somebody is to be answered: a peer, or an operator."""
        if self._hearing or not self.peers:  # `_hearing`: what is being taken in asks itself
            return
        self._hearing = True
        try:
            for peer in list(self.peers):
                if peer is not asks:
                    peer.hear()
        finally:
            self._hearing = False

    def answer(self, peer: Peer, *, alone: bool, believes: bool) -> bool:
        """What a Heartbeat is answered with: whether the node is heard first. `alone`: no other node can hold anything, and
        the master knows all that this one holds. `believes`: what the node has taken it for when it sent this; once that
        is no, it relies on nothing."""
        if alone and peer.near and not self._ends:
            self.peers[peer] = None
            return True
        if not believes:
            self.gone(peer)
        return False

    def told(self, peer: Peer) -> bool:
        """What the last one was answered with, unless that has ended."""
        return peer in self.peers and not self._ends

    async def end(self, peers: Collection[Peer], news: Message) -> None:
        """Another node comes, as `news` tells these. Returns once none of them relies on it any more."""
        self._ends += 1
        try:
            for peer in peers:
                peer.push(news)
            async with asyncio.timeout(END_WAIT_S):
                while any(peer in self.peers for peer in peers):
                    self._dropped.clear()
                    await self._dropped.wait()
        except TimeoutError:
            for peer in peers:
                if peer in self.peers:
                    peer.hear()
                    peer.close()
                    self.gone(peer)
        finally:
            self._ends -= 1

    def gone(self, peer: Peer) -> None:
        """It is heard first no more."""
        if self.peers.pop(peer, self) is None:
            self._dropped.set()
