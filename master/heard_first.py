"""Reports that are heard before anybody is answered: what a node need not wait for.

A put is visible once the master has the node's report of it. It is as good where the report merely lies in the master's
socket, if the master empties that one before it answers anybody: whoever can know that the put was done asks later than
the node has sent. That holds for a Unix socket, into which a sender's bytes are put by the kernel as it sends, and so for
nodes that have come through the near door; over a network nobody knows what is under way.

Nor may the master refuse what is reported. It refuses what another node holds, so this is for a node that is alone in its
pool, and for objects that the node itself holds nothing of (store_client/node/names.py). A second node that joins ends it
before its own Announce is answered.
"""

from __future__ import annotations

from moonpool.store_client.rpc.peer import Peer


class HeardFirst:
    """Of one master: the nodes' connections that are emptied first. Event loop only."""

    def __init__(self) -> None:
        self.peers: dict[Peer, bool] = {}
        """Whether the node was told last that it is so."""
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

    def tell(self, peer: Peer, alone: bool) -> bool:
        """What the node's Announce or Heartbeat is answered with. `alone`: whether it is the only one. A node that was told
        no is heard first until it has sent another one, which it does once it knows."""
        if alone and peer.near:
            self.peers[peer] = True
            return True
        if self.peers.get(peer):
            self.peers[peer] = False
        else:
            self.peers.pop(peer, None)
        return False

    def others(self, peer: Peer) -> list[Peer]:
        """Those who are to be told that another node has come."""
        return [one for one, told in self.peers.items() if told and one is not peer]

    def gone(self, peer: Peer) -> None:
        """Its connection is over."""
        self.peers.pop(peer, None)
