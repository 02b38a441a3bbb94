"""Several members over one store in memory: who holds what, whatever the store and the clocks do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from moonpool.master.background import lasting
from moonpool.master.membership.cluster import SHARDS_DEFAULT, agree
from moonpool.master.membership.member import ClusterMember, MemberSettings
from moonpool.master.membership.records import owns
from moonpool.master.membership.view import ClusterView
from moonpool.master.store.base import Put
from moonpool.master.store.memory import MemoryStore
from moonpool.schemas.errors import ConfigError, StoreFailed

SHARDS = 7
LEASE_S = 4.0
TIMEOUT_S = 20.0


class Host:
    """Notes what it is told; `cluster` has what all hosts hold, to see that no two hold the same at once."""

    def __init__(self, cluster: dict[int, str], name: str) -> None:
        self.cluster, self.name = cluster, name
        self.held: dict[int, int] = {}
        self.left: list[int] = []

    def own(self, shard: int, epoch: int) -> None:
        assert shard not in self.cluster, f"shard {shard} is {self.cluster[shard]}'s"
        self.cluster[shard] = self.name
        self.held[shard] = epoch

    async def load(self, shard: int, epoch: int) -> None:
        await asyncio.sleep(0)

    async def leave(self, shard: int, epoch: int) -> None:
        if self.cluster.get(shard) == self.name:
            del self.cluster[shard]
        self.left.append(shard)

    def disown(self, shards: Iterable[int]) -> None:
        for shard in list(shards):
            del self.held[shard]
            if self.cluster.get(shard) == self.name:
                del self.cluster[shard]

    def see(self, view: ClusterView) -> None:
        self.view = view


class Cluster:
    """Members that run until they are stopped."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.held: dict[int, str] = {}
        self.members: dict[str, tuple[ClusterMember, Host, asyncio.Task[None]]] = {}

    def start(self, name: str, store: object = None) -> ClusterMember:
        host = Host(self.held, name)
        settings = MemberSettings(f"{name}:1", LEASE_S, TIMEOUT_S)
        member = ClusterMember(store or self.store, SHARDS, settings, host)  # type: ignore[arg-type]
        self.members[name] = (member, host, asyncio.create_task(member.run()))
        return member

    async def kill(self, name: str) -> None:
        """Without a word to the store."""
        _, _, task = self.members.pop(name)
        task.cancel()
        await asyncio.wait({task})

    async def leave(self, name: str) -> Host:
        member, host, _ = self.members[name]
        await member.leave(TIMEOUT_S)
        await self.kill(name)
        return host

    def shares(self) -> list[int]:
        return sorted(len(host.held) for _, host, _ in self.members.values())

    def epochs(self) -> dict[int, int]:
        return {shard: epoch for _, host, _ in self.members.values() for shard, epoch in host.held.items()}

    async def settled(self, *shares: int) -> None:
        await until(lambda: self.shares() == sorted(shares) and len(self.held) == SHARDS)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    for name in list(made.members):
        await made.kill(name)
    await made.store.close()


async def test_members_share_the_shards_and_move_as_few_as_they_can(cluster: Cluster) -> None:
    cluster.start("a")
    await cluster.settled(7)
    first = cluster.epochs()
    cluster.start("b")
    await cluster.settled(3, 4)
    cluster.start("c")
    await cluster.settled(2, 2, 3)
    moved = [shard for shard, epoch in cluster.epochs().items() if epoch != first[shard]]
    assert len(moved) == 4, "three stayed where they were from the beginning"
    host = await cluster.leave("b")
    await cluster.settled(3, 4)
    assert len(host.left) >= 2 and not host.held
    addresses = {tuple(host.view.addresses) for _, host, _ in cluster.members.values()}
    assert addresses == {("a:1", "c:1")}


async def test_a_killed_member_is_replaced_when_its_lease_ends(cluster: Cluster) -> None:
    for name in "ab":
        cluster.start(name)
    await cluster.settled(3, 4)
    before = cluster.epochs()
    await cluster.kill("a")
    assert not any(name == "a" for name in cluster.held.values())
    await cluster.settled(7)
    after = cluster.epochs()
    assert all(after[shard] >= before[shard] for shard in range(SHARDS))
    assert sum(after[shard] > before[shard] for shard in range(SHARDS)) in (3, 4)


class Unreachable(MemoryStore):
    """Refuses everything while `down`. The memory is another one's, which stays up."""

    def __init__(self, real: MemoryStore) -> None:
        self.real, self.down = real, False

    def __getattribute__(self, name: str) -> object:
        if name in ("real", "down"):
            return object.__getattribute__(self, name)
        if object.__getattribute__(self, "down"):
            return _refuse
        return getattr(object.__getattribute__(self, "real"), name)


async def _refuse(*_: object, **__: object) -> None:
    await asyncio.sleep(0.01)
    raise StoreFailed(store="the store", reason="it is away")


async def test_who_loses_the_store_stops_serving_before_others_take_over(cluster: Cluster) -> None:
    """Host.own asserts that nobody else holds the shard; here also that the one before doesn't answer any more."""
    store = Unreachable(cluster.store)
    deposed = cluster.start("a", store)
    await cluster.settled(7)
    cluster.start("b")
    await cluster.settled(3, 4)
    store.down = True
    host = cluster.members["a"][1]
    held = set(host.held)
    other = cluster.members["b"][1]
    while deposed.serving():
        assert not held & set(other.held), "two serve the same shard"
        await asyncio.sleep(0.002)
    # Its host has not been told anything: it doesn't know that its lease has ended. The clock fences it.
    for shard in held:
        cluster.held.pop(shard, None)
    await until(lambda: len(other.held) == SHARDS)
    assert not deposed.serving()
    epochs = dict(host.held)
    store.down = False
    for shard, epoch in epochs.items():
        put = [Put(b"pins/x", b"of a deposed one")]
        assert await cluster.store.commit(put, conditions=[owns(shard, epoch)], timeout_s=20) is None
        assert await cluster.store.commit(put, conditions=[owns(shard, other.held[shard])], timeout_s=20)
    await cluster.settled(3, 4)
    assert deposed.serving(), "back under a new lease"


async def test_a_commit_whose_answer_is_lost_is_found_again(cluster: Cluster) -> None:
    class Forgetful(MemoryStore):
        lost = 0

        async def commit(self, *arguments: object, **options: object) -> int | None:  # type: ignore[override]
            revision = await cluster.store.commit(*arguments, **options)  # type: ignore[arg-type]
            if options.get("conditions") and self.lost < 5:
                self.lost += 1
                raise StoreFailed(store="the store", reason="the answer was lost")
            return revision

        def __getattribute__(self, name: str) -> object:
            if name in ("commit", "lost", "__class__"):
                return object.__getattribute__(self, name)
            return getattr(cluster.store, name)

    cluster.start("a", Forgetful())
    await cluster.settled(7)


async def test_masters_must_agree_on_the_shards() -> None:
    store = MemoryStore()
    assert await agree(store, 0, 1.0) == SHARDS_DEFAULT
    assert await agree(store, 0, 1.0) == SHARDS_DEFAULT
    assert await agree(store, SHARDS_DEFAULT, 1.0) == SHARDS_DEFAULT
    with pytest.raises(ConfigError, match="was made with 16"):
        await agree(store, 4, 1.0)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ImportError):
        patch.setattr("moonpool.master.membership.cluster.STRIDE", 256)
        with pytest.raises(ConfigError, match="use another cluster name"):
            await agree(store, 0, 1.0)
    await store.close()


async def test_a_fault_in_the_program_is_told_and_the_member_joins_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    own = Host.own
    faults = 0

    def fail_once(self: Host, shard: int, epoch: int) -> None:
        nonlocal faults
        if faults == 0:
            faults += 1
            raise ZeroDivisionError
        own(self, shard, epoch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "own", fail_once)
        cluster.start("a")
        await cluster.settled(7)
    assert faults == 1
    assert "joining again" in caplog.text


async def test_a_part_that_fails_begins_again_and_one_that_is_done_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = 0

    async def part() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise ValueError(runs)

    await lasting("this part", part, retry_s=0.0)
    assert runs == 3
    assert caplog.text.count("this part: a fault in the program") == 2
