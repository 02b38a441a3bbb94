"""Assignment, lease, shard states and the mirror of the records: no clock, no store."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.master.membership.assignment import assign
from moonpool.master.membership.lease import KEEPALIVES, LeaseClock
from moonpool.master.membership.records import (
    MasterRecord,
    OwnerRecord,
    encode,
    epoch_key,
    epoch_value,
    master_key,
    owner_key,
)
from moonpool.master.membership.seat import advertised_page
from moonpool.master.membership.shard_state import Event, ShardLife, ShardState
from moonpool.master.membership.view import ClusterView
from moonpool.master.store.base import Changes, Record
from moonpool.schemas.errors import CorruptStore, InternalError

names = st.sampled_from([f"10.0.0.{i}:50051/{i:08x}" for i in range(8)])


@settings(derandomize=True, deadline=None)
@given(
    shards=st.integers(1, 64),
    masters=st.sets(names, max_size=6),
    owners=st.dictionaries(st.integers(0, 63), names, max_size=64),
)
def test_assignment_is_balanced_and_moves_as_few_as_balance_allows(
    shards: int, masters: set[str], owners: dict[int, str]
) -> None:
    owners = {shard: owner for shard, owner in owners.items() if shard < shards}
    assigned = assign(shards, masters, owners)
    if not masters:
        assert assigned == {}
        return
    assert sorted(assigned) == list(range(shards))
    counts = Counter(assigned.values())
    sizes = [counts[master] for master in masters]
    assert max(sizes) - min(sizes) <= 1
    # No balanced assignment keeps more: each master keeps what it has, up to its share, and the larger shares go to
    # those that have more.
    had = sorted((sum(owner == master for owner in owners.values()) for master in masters), reverse=True)
    least, more = divmod(shards, len(masters))
    kept_at_best = sum(min(count, least + (i < more)) for i, count in enumerate(had))
    assert sum(owners.get(shard) == master for shard, master in assigned.items()) == kept_at_best
    assert assign(shards, masters, assigned) == assigned, "what is as it should be stays"
    assert assign(shards, sorted(masters, reverse=True), owners) == assigned, "all masters agree"


def test_a_master_stops_before_the_store_lets_another_take_over() -> None:
    clock = LeaseClock()
    assert not clock.valid(0.0)
    clock.renewed(10.0, 3.0)
    clock.validate()
    assert clock.valid(10.0) and clock.valid(12.3)
    assert not clock.valid(12.5), (
        "the store counts to 13 from when the keepalive came, which is later than 10"
    )
    assert clock.wait_s(10.0) == pytest.approx(3.0 / KEEPALIVES)
    clock.renewed(9.0, 3.0)
    assert clock.until_s == pytest.approx(12.4), "a late answer to an earlier keepalive takes nothing back"
    clock.lost()
    assert not clock.valid(10.1) and clock.wait_s(10.1) == 0.0
    clock.validate()


def test_the_life_of_a_shard() -> None:
    life = ShardLife()
    assert life.happens(Event.TAKEN, 7) is ShardState.LOADING and life.answers and not life.changes
    assert life.happens(Event.LOADED) is ShardState.SERVING and life.changes
    assert life.happens(Event.LEASE_LATE) is ShardState.FENCED and not life.answers and not life.changes
    assert life.happens(Event.LEASE_RENEWED) is ShardState.SERVING and life.changes
    assert life.happens(Event.LEAVING) is ShardState.DRAINING and not life.answers
    assert life.happens(Event.RELEASED) is ShardState.ABSENT
    with pytest.raises(InternalError):
        life.happens(Event.TAKEN, 7)  # epochs only grow
    life.happens(Event.TAKEN, 8)
    assert life.happens(Event.LEASE_LOST) is ShardState.ABSENT and not life.answers


@settings(derandomize=True, deadline=None)
@given(events=st.lists(st.sampled_from(list(Event)), max_size=30))
def test_a_shard_answers_only_while_it_is_held_and_the_lease_is_good(events: list[Event]) -> None:
    life, late, epoch = ShardLife(), False, 0
    for event in events:
        epoch += 1
        before = life.state
        try:
            after = life.happens(event, epoch if event is Event.TAKEN else 0)
        except InternalError:
            assert life.state is before, "what can't happen changes nothing"
            continue
        late = event is Event.LEASE_LATE or (late and event not in (Event.LEASE_RENEWED, Event.LEASE_LOST))
        life.validate()
        assert life.answers == (after in (ShardState.LOADING, ShardState.SERVING))
        assert not (late and life.answers)


# ---------------------------------------------------------------- the mirror


def records(*found: tuple[bytes, bytes]) -> list[Record]:
    return [Record(key, value, version) for version, (key, value) in enumerate(found, 1)]


def test_the_view_follows_the_store() -> None:
    view = ClusterView(4)
    view.reset(
        records(
            (master_key("a"), encode(MasterRecord("host-a:1"))),
            (master_key("b"), encode(MasterRecord("host-b:1"))),
            (owner_key(0), encode(OwnerRecord("a", 5))),
            (epoch_key(0), epoch_value(5)),
            (owner_key(3), encode(OwnerRecord("gone", 6))),
        ),
        9,
    )
    assert view.addresses == ["host-a:1", "host-b:1"]
    assert view.owners_by_address() == [0, -1, -1, -1]
    assert view.epoch(0).epoch == 5 and view.epoch(1).version == 0
    assert sorted([*view.to_take("a"), *view.to_take("b")]) == [1, 2], "3 is owned until its lease ends"
    view.apply(Changes(10, (), (owner_key(3), owner_key(0))))
    assert len(view.to_take("a")) == len(view.to_take("b")) == 2
    leaving = encode(MasterRecord("host-a:1", draining=True))
    view.apply(Changes(11, (Record(master_key("a"), leaving, 11),), ()))
    assert view.to_take("a") == [] and view.to_take("b") == [0, 1, 2, 3]
    assert view.to_release("a", [1, 2]) == [1, 2]
    view.apply(Changes(12, (), (master_key("a"), master_key("b"))))
    assert view.addresses == [] and view.to_take("b") == []
    assert view.revision == 12


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (master_key("a"), b"\xc1"),
        (master_key("a"), b""),
        (owner_key(0), encode(["owner/2", "a", 5])),
        (epoch_key(0), b"five"),
        (epoch_key(0), b"9" * 30),
        (b"shards/x/owner", b""),
    ],
)
def test_a_record_that_cannot_be_read_is_named(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptStore):
        ClusterView(4).reset(records((key, value)), 1)


@pytest.mark.parametrize(
    ("address", "page", "told"),
    [
        ("10.0.0.7:50051", "http://0.0.0.0:8080", "http://10.0.0.7:8080"),
        ("pool-0.pool.svc:50051", "https://[::]:8080", "https://pool-0.pool.svc:8080"),
        ("[fd00::7]:50051", "https://[::]:8080", "https://[fd00::7]:8080"),
        ("127.0.0.1:50051", "http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("localhost:50051", "http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("10.0.0.7:50051", "http://127.0.0.1:8080", ""),  # on loopback, where others don't come
        ("10.0.0.7:50051", "", ""),
    ],
)
def test_the_rest_address_that_others_are_told(address: str, page: str, told: str) -> None:
    assert advertised_page(address, page) == told


def test_members_of_a_version_without_rest_addresses() -> None:
    view = ClusterView(4)
    older = msgspec.msgpack.encode(["master/1", "10.0.0.1:50051", False])
    newer = encode(MasterRecord("10.0.0.2:50051", False, "http://10.0.0.2:8080"))
    view.reset([Record(master_key("a"), older, 1, 1), Record(master_key("b"), newer, 1, 1)], 7)
    assert view.members() == [("10.0.0.1:50051", ""), ("10.0.0.2:50051", "http://10.0.0.2:8080")]
