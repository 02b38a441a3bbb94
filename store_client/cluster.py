"""The masters of a cluster as one: requests are cut by who owns the shards, and go to all of those at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np

from moonpool.schemas.errors import (
    MoonpoolError,
    NotFound,
    ProtocolError,
    Unavailable,
    Unreachable,
    WrongShard,
)
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import (
    ClusterMap,
    Describe,
    GetClusterMap,
    GetStatus,
    KeyspaceRegistered,
    ListKeyspaces,
    Message,
    RegisterKeyspace,
)
from moonpool.schemas.packed import join_hashes, pack_u16
from moonpool.schemas.routing import Part, Places, merged, missed, parts_of
from moonpool.schemas.runs import SHARDS_MAX, shard_of, shards_of
from moonpool.store_client.directory import Directory
from moonpool.store_client.exchange import Outcome, exchange
from moonpool.store_client.keyspaces import KeyspaceBook
from moonpool.store_client.master import Asked, MasterLink

log = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=Message)

REFRESH_PAUSE_S = 0.1
"""The map is asked for no more often than this, whatever is wrong with it."""

REFRESH_TIMEOUT_S = 1.0
"""Of one master that is asked for the map, while others may know it too."""

CONNECT_TIMEOUT_S = 0.5
"""Of one master of several, before the others' answers are read."""

REDIRECTS_MAX = 3
REDIRECT_PAUSE_S = 0.1
"""Before the second redirect; twice that before the third."""

MASTERS_MAX = 64

_NOBODY = -1

_FOR_ANY = frozenset[type[Message]]({GetClusterMap, GetStatus, ListKeyspaces})
"""What every master answers alike."""


class _Map(msgspec.Struct, frozen=True):
    """What is known of the cluster. `owners`: by shard an index into `masters`, or _NOBODY."""

    epoch: int
    shards: int
    masters: tuple[str, ...]
    owners: tuple[int, ...]


class Cluster:
    """Thread-safe. `directory`: masters that may be asked who there is; one that is alone is reached by that name."""

    def __init__(self, directory: Directory, link: Callable[[str], MasterLink], book: KeyspaceBook) -> None:
        self._directory = directory
        self.name = str(directory)
        """For messages to people."""
        self._make_link = link
        self._book = book
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._links = {
            name: link(name) for name in directory.names
        }  # here, so that a bad address is told at once
        self._map: _Map | None = None
        self._refreshed_s = float("-inf")
        self._stale = False
        self._closed = False

    # ------------------------------------------------------------ shards

    def shards(self, deadline_s: float) -> int:
        """How many the cluster has. Raises Unreachable."""
        return self._known(deadline_s).shards

    def column(self, keyspace: bytes, roots: Sequence[bytes], deadline_s: float) -> bytes:
        """The `shards` column of a request that names runs by their first blocks' hashes, or rows of a flat keyspace.
        Raises Unreachable."""
        shards = self._known(deadline_s).shards
        if shards == 1 or not roots:
            return b""
        return pack_u16(shards_of(keyspace, join_hashes(roots), len(roots[0]), shards))

    def shard(self, keyspace: bytes, root: bytes, deadline_s: float) -> int:
        """The shard of one run or row. Raises Unreachable."""
        return shard_of(keyspace, root, self.shards(deadline_s))

    # ------------------------------------------------------------ requests

    def ask(self, message: Message, reply: type[Reply], deadline_s: float) -> Reply:
        """The answer, of that type. Masters that can't be asked count as knowing nothing of their shards, where others
        answer and the request can bear it. Raises what the masters answer, and Unreachable."""
        if type(message) in _FOR_ANY:
            return self._ask_any(message, reply, deadline_s)
        known = self._known(deadline_s)
        if len(known.masters) == 1:  # the usual case
            answer = self._ask_one(known, 0, message, deadline_s, REDIRECTS_MAX)
        else:
            answer = self._route(message, deadline_s, REDIRECTS_MAX)
        if not isinstance(answer, reply):
            name = type(answer).__name__
            raise ProtocolError(peer=self.name, reason=f"{name} in answer to {type(message).__name__}")
        return answer

    def ask_all(self, message: Message, reply: type[Reply], deadline_s: float) -> list[Reply]:
        """The answer of every master. Raises what any of them answers, and Unreachable."""
        known = self._known(deadline_s)
        if len(known.masters) == 1:
            return [self._link(known.masters[0]).ask(message, reply, deadline_s)]
        parts = [Part(place, message, None) for place in range(len(known.masters))]
        outcomes = self._ask_all(known, parts, deadline_s)
        answers = [one for one in outcomes if isinstance(one, reply)]
        if len(answers) < len(outcomes):
            raise _worst([one for one in outcomes if not isinstance(one, reply)])
        return answers

    def register(self, spec: KeyspaceSpec, deadline_s: float) -> bytes:
        """Makes a keyspace known to every master. Those that can't be asked are told when they ask back."""
        known = self._known(deadline_s)
        if len(known.masters) == 1:
            return self._link(known.masters[0]).register(spec, deadline_s)
        parts = [Part(place, RegisterKeyspace(spec), None) for place in range(len(known.masters))]
        outcomes = self._ask_all(known, parts, deadline_s)
        registered = [one for one in outcomes if isinstance(one, KeyspaceRegistered)]
        if not registered:
            raise _worst(outcomes)
        return registered[0].keyspace

    def _route(self, message: Message, deadline_s: float, redirects: int) -> Message:
        known = self._known(deadline_s)
        if len(known.masters) == 1:
            return self._ask_one(known, 0, message, deadline_s, redirects)
        owners = np.array(known.owners)
        everybody = sorted(set(known.owners))
        parts = parts_of(message, Places(owners, everybody, True, self._hash_bytes))
        if len(parts) == 1:
            return self._ask_one(known, parts[0].place, parts[0].message, deadline_s, redirects)
        outcomes = self._ask_all(known, parts, deadline_s)
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, WrongShard):
                outcomes[index] = self._redirected(
                    outcome, known, parts[index].message, deadline_s, redirects
                )
        if isinstance(message, Describe):
            return _described(outcomes)
        return self._merged(message, parts, outcomes)

    def _ask_one(
        self, known: _Map, place: int, message: Message, deadline_s: float, redirects: int
    ) -> Message:
        try:
            return self._owner(known, place).ask(message, Message, deadline_s)
        except WrongShard as error:
            outcome = self._redirected(error, known, message, deadline_s, redirects)
        except Unreachable:
            self._stale = True  # another one may have taken its shards over
            raise
        if isinstance(outcome, MoonpoolError):
            raise outcome
        return outcome

    def _ask_all(self, known: _Map, parts: Sequence[Part], deadline_s: float) -> list[Outcome]:
        """All at once. Those that must be connected to go last, so that they keep nobody waiting."""
        connect_s = min(deadline_s, time.monotonic() + CONNECT_TIMEOUT_S)

        def begin(part: Part) -> Asked:
            link = self._owner(known, part.place)
            return link.begin(part.message, deadline_s if link.is_open else connect_s)

        def is_open(part: Part) -> bool:
            return part.place != _NOBODY and self._owner(known, part.place).is_open

        order = sorted(range(len(parts)), key=lambda index: not is_open(parts[index]))
        found = exchange([partial(begin, parts[index]) for index in order], deadline_s)
        outcomes = [
            outcome for _, outcome in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])
        ]
        self._stale = self._stale or any(isinstance(one, Unreachable) for one in outcomes)
        return outcomes

    def _owner(self, known: _Map, place: int) -> MasterLink:
        if place == _NOBODY:
            raise Unavailable(peer="a shard's master", retry_in_s=REFRESH_PAUSE_S)
        name = known.masters[place]
        return self._links.get(name) or self._new_link(name)

    def _redirected(
        self, refusal: WrongShard, known: _Map, message: Message, deadline_s: float, redirects: int
    ) -> Outcome:
        """Asks whoever owns the shards by now."""
        if redirects <= 0:
            return refusal
        # They are on their way from one master to another, which takes some ms.
        pause_s = REDIRECT_PAUSE_S * (REDIRECTS_MAX - redirects)
        time.sleep(max(0.0, min(pause_s, deadline_s - time.monotonic())))
        try:
            self._refresh(known, deadline_s)
            if self._known(deadline_s).shards != known.shards:
                return refusal  # the request names shards of another cluster
            return self._route(message, deadline_s, redirects - 1)
        except MoonpoolError as error:
            return error

    def _merged(self, message: Message, parts: Sequence[Part], outcomes: Sequence[Outcome]) -> Message:
        answers: list[Message] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            blank = None
            if isinstance(outcome, (Unreachable, WrongShard)):
                blank = missed(part.message, self._hash_bytes)
            if blank is None and isinstance(outcome, MoonpoolError):
                raise outcome
            answers.append(outcome if blank is None else blank)  # type: ignore[arg-type]
        if all(isinstance(outcome, MoonpoolError) for outcome in outcomes):
            raise _worst(outcomes)
        return merged(message, parts, answers)

    def _ask_any(self, message: Message, reply: type[Reply], deadline_s: float) -> Reply:
        """Of the first master that answers."""
        names = self._names()
        try:
            return self._ask_first(names, message, reply, deadline_s)
        except Unreachable:
            if not self._directory.asks:
                raise
        found = [name for name in self._directory.find(deadline_s) if name not in names]
        return self._ask_first(found, message, reply, deadline_s)

    def _ask_first(
        self, names: Sequence[str], message: Message, reply: type[Reply], deadline_s: float
    ) -> Reply:
        failure: MoonpoolError = Unavailable(peer=f"any master of {self.name}", retry_in_s=REFRESH_PAUSE_S)
        for name in names:
            others_s = time.monotonic() + REFRESH_TIMEOUT_S
            try:
                wait_s = deadline_s if len(names) == 1 else min(deadline_s, others_s)
                answer = self._link(name).ask(message, reply, wait_s)
            except Unreachable as error:
                failure = error
                continue
            if isinstance(answer, ClusterMap):
                self._learn(answer, name)
            return answer
        raise failure

    # ------------------------------------------------------------ the map

    def _known(self, deadline_s: float) -> _Map:
        known = self._map
        if known is None or self._stale:
            self._refresh(known, deadline_s)
            known = self._map
        assert known is not None
        return known

    def _refresh(self, before: _Map | None, deadline_s: float) -> None:
        """Asks for the map, unless somebody has meanwhile, or did a moment ago. Raises Unreachable where nothing was
        ever known."""
        if not self._refreshing.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            if self._map is None:
                raise Unavailable(peer=self.name, retry_in_s=REFRESH_PAUSE_S)
            return
        try:
            fresh = time.monotonic() < self._refreshed_s + REFRESH_PAUSE_S
            if self._map is not None and (self._map is not before or fresh):
                return
            self._refreshed_s = time.monotonic()
            try:
                self._ask_any(GetClusterMap(), ClusterMap, deadline_s)
                self._stale = False
            except MoonpoolError as error:
                if self._map is None:
                    raise
                log.debug("no cluster map: %s", error)
        finally:
            self._refreshing.release()

    def _learn(self, cluster: ClusterMap, asked: str) -> None:
        if not 1 <= cluster.shards <= SHARDS_MAX or len(cluster.masters) > MASTERS_MAX:
            raise ProtocolError(peer=asked, reason=f"a map of {cluster.shards} shards")
        alone = len(cluster.masters) <= 1
        masters = (asked,) if alone else tuple(cluster.masters)
        owners = tuple(cluster.owners)
        if len(owners) != cluster.shards:
            owners = (0,) * cluster.shards
        owners = tuple(owner if 0 <= owner < len(masters) else _NOBODY for owner in owners)
        with self._lock:
            if self._map is not None and cluster.epoch < self._map.epoch and not alone:
                return  # of one that hasn't heard the news
            self._map = _Map(cluster.epoch, cluster.shards, masters, owners)

    def _names(self) -> list[str]:
        """Whom to ask, those that own something first."""
        known = self._map
        return list(dict.fromkeys([*(known.masters if known is not None else ()), *self._directory.names]))

    def _link(self, name: str) -> MasterLink:
        return self._links.get(name) or self._new_link(name)

    def _new_link(self, name: str) -> MasterLink:
        with self._lock:
            link = self._links.get(name)
            if link is None:
                self._forget_old_links()
                link = self._links[name] = self._make_link(name)
                if self._closed:
                    link.close()
        return link

    def _forget_old_links(self) -> None:
        """Masters come and go, in some clusters under new names each time."""
        if len(self._links) >= 2 * MASTERS_MAX:
            kept = {*self._names()}
            for name in [name for name in self._links if name not in kept]:
                self._links.pop(name).close()

    def _hash_bytes(self, keyspace: bytes) -> int:
        return self._book.get(keyspace).hash_bytes

    def open_breakers(self) -> int:
        """Masters that failed lately. Waits for nobody."""
        return sum(link.failed for link in list(self._links.values()))

    def close(self) -> None:
        """Calls under way fail soon."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
        for link in links:
            link.close()


def _described(outcomes: Sequence[Outcome]) -> Message:
    for outcome in outcomes:
        if isinstance(outcome, Message):
            return outcome
    raise _worst(outcomes)


def _worst(outcomes: Sequence[Outcome]) -> MoonpoolError:
    """What to tell where nobody had an answer: that somebody couldn't be asked, rather than what others said."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, MoonpoolError)]
    return next((error for error in errors if not isinstance(error, NotFound)), errors[0])
