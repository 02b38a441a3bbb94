"""What the planner may order, whatever is wanted and whoever is there."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from support.soak import SOAK

from moonpool.master.replicas import planner as module
from moonpool.master.replicas.planner import Answer, CopyPlanner, Reason, Seat, Want

KEYSPACE = b"k" * 16
RATE = 1000
LEFT_BYTES = 2000


def seat(index: int, host: str, room: int = 10_000, crowded: int = 20_000, victim_s: float = 500.0) -> Seat:
    return Seat(index, host, room, crowded, lambda: victim_s, 4096)


def want(
    name: int,
    holders: list[int],
    *,
    size: int = 100,
    used_s: float = 0.0,
    to: int = -1,
    reason: Reason = Reason.REPAIR,
    tenant: str = "",
) -> Want:
    cell = (KEYSPACE, 0, name.to_bytes(16, "little"))
    return Want(cell, 0, size, used_s, holders, holders, holders, reason, to, tenant)


def host_of(index: int) -> str:
    """Two nodes a host."""
    return f"host {index // 2}"


seats = st.lists(
    st.builds(
        lambda index, room, more, victim_s: seat(index, host_of(index), room, room + more, victim_s),
        st.integers(0, 7),
        st.integers(-500, 3000),
        st.integers(0, 2000),
        st.sampled_from((0.0, 500.0, float("inf"))),
    ),
    max_size=8,
    unique_by=lambda one: one.index,
)
wants = st.lists(
    st.builds(
        lambda name, holders, size, used_s, to, reason, tenant: want(
            name, sorted(holders), size=size, used_s=used_s, to=to, reason=reason, tenant=tenant
        ),
        st.integers(0, 30),
        st.sets(st.integers(0, 7), max_size=4),
        st.integers(1, 5000),
        st.sampled_from((0.0, 530.0, 600.0)),
        st.sampled_from((-1, -1, 3)),
        st.sampled_from(Reason),
        st.sampled_from(("free", "limited")),
    ),
    max_size=40,
)
steps = st.lists(
    st.tuples(wants, seats, st.floats(0.0, 70.0), st.integers(0, 5), st.booleans()), min_size=1, max_size=6
)


@settings(derandomize=True, deadline=None, max_examples=150 * SOAK)
@given(steps)
def test_orders_keep_to_every_bound(steps: list[tuple[list[Want], list[Seat], float, int, bool]]) -> None:
    planner, now_s = CopyPlanner(RATE), 100.0
    for asked, there, passed_s, ends, refused in steps:
        now_s += passed_s
        late = planner.expire(now_s)
        assert all(order.until_s <= now_s for order in late)
        before = dict(planner.orders)
        coming: Counter[int] = Counter()
        for order in before.values():
            coming[order.target] += order.size_bytes
        orders, answers = planner.plan(asked, there, host_of, now_s, {"limited": LEFT_BYTES})
        planner.validate()
        assert len(answers) == len(asked)
        assert sum(len(order.wants) for order in orders) == answers.count(Answer.ORDERED)
        new = [one for order in orders for one in order.wants if one.tenant == "limited"]
        if any(one.reason is not Reason.DRAIN for one in new):
            under_way = [one for order in planner.orders.values() for one in order.wants]
            moves = sum(one.size_bytes for one in new if one.reason is Reason.DRAIN)
            assert sum(one.size_bytes for one in under_way if one.tenant == "limited") <= LEFT_BYTES + moves
        rooms = {one.index: one for one in there}
        for order in orders:
            assert order.order_id not in before and order.target in rooms
            target = rooms[order.target]
            for one in order.wants:
                coming[order.target] += one.size_bytes
                assert one.size_bytes <= target.page_bytes and one.to in (-1, order.target)
                assert coming[order.target] <= max(target.room_bytes, target.crowded_bytes)
                if coming[order.target] > target.room_bytes:
                    assert one.last_use_s > target.victim_use_s() + module.HOTTER_S, (
                        "a hotter one is pushed out"
                    )
        for number in list(planner.orders)[:ends]:
            assert planner.ended(number, no_space_s=now_s if refused else None) is not None
            assert planner.ended(number) is None
            planner.validate()


@settings(derandomize=True, deadline=None, max_examples=100 * SOAK)
@given(st.integers(1, 200), st.integers(1, 3000))
def test_a_node_is_given_no_more_a_second_than_it_may(count: int, size: int) -> None:
    planner, sent = CopyPlanner(RATE), 0
    there = [seat(2, "far", room=1 << 30)]
    names = iter(range(1 << 20))
    for second in range(20):
        asked = [want(next(names), [0], size=size) for _ in range(count)]
        orders, _ = planner.plan(asked, there, host_of, 100.0 + second, {})
        sent += sum(order.size_bytes for order in orders)
        for order in orders:
            planner.ended(order.order_id)
    assert sent <= RATE * 20 + size
    assert sent >= min(count * size, RATE) * 19 * 0.5, "it may be given more"


def test_another_host_comes_first_and_the_same_one_is_better_than_none() -> None:
    planner = CopyPlanner(RATE)
    roomy, far = seat(1, host_of(1), room=1 << 20), seat(2, host_of(2), room=200)
    (order,), _ = planner.plan([want(1, [0])], [roomy, far], host_of, 100.0, {})
    assert order.target == 2
    (order,), _ = planner.plan([want(2, [0], size=150)], [roomy, far], host_of, 100.0, {})
    assert order.target == 1, "the other host has no room left"


def test_who_said_that_it_is_full_is_left_alone_for_a_while() -> None:
    planner, there = CopyPlanner(RATE), [seat(2, "far")]
    (order,), _ = planner.plan([want(1, [0])], there, host_of, 100.0, {})
    planner.ended(order.order_id, no_space_s=100.0)
    assert planner.plan([want(1, [0])], there, host_of, 101.0, {}) == ([], [Answer.NO_SPACE])
    _, answers = planner.plan([want(1, [0])], there, host_of, 100.0 + module.REFUSED_S, {})
    assert answers == [Answer.ORDERED]


def test_no_rate_means_no_copies() -> None:
    assert CopyPlanner(0).plan([want(1, [0])], [seat(2, "far")], host_of, 100.0, {}) == ([], [Answer.LATER])


def test_a_quota_counts_what_is_on_its_way_and_holds_for_every_copy_but_a_move() -> None:
    planner, there, left = CopyPlanner(1 << 20), [seat(2, "far")], {"red": 250}
    for name, reason in enumerate((Reason.REPAIR, Reason.WARM)):
        _, answers = planner.plan([want(name, [0], reason=reason, tenant="red")], there, host_of, 100.0, left)
        assert answers == [Answer.ORDERED]
    for reason in (Reason.REPAIR, Reason.WARM, Reason.HOT):
        found = planner.plan([want(5, [0], reason=reason, tenant="red")], there, host_of, 100.0, left)
        assert found == ([], [Answer.OVER_QUOTA])
    others = [want(6, [0], tenant="blue"), want(7, [0], reason=Reason.DRAIN, tenant="red")]
    assert planner.plan(others, there, host_of, 100.0, left)[1] == [Answer.ORDERED] * 2
    for number in list(planner.orders):
        planner.ended(number)
    planner.validate()
    _, answers = planner.plan([want(5, [0], tenant="red")], there, host_of, 100.0, left)
    assert answers == [Answer.ORDERED], "what was on its way has come or failed"
