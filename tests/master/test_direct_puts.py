"""Who may put without asking for each, and what is said of what the index has no use for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec import structs
from support.paper_cluster import BLOCK_BYTES, Block, PaperCluster, chain, chained_spec, flat_spec

from moonpool.master.core import Outcome
from moonpool.master.direct_puts import DIRECT_MS, SPARE_SHARE
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    AS_CONFIGURED,
    DIRECT_BYTES,
    SMALL_BYTES,
    Done,
    Drain,
    Heartbeat,
    InventoryEnd,
    Message,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    Refused,
    Remove,
    Report,
    ReportBad,
    SetTenant,
)
from moonpool.schemas.packed import join_hashes, u64s
from moonpool.schemas.routing import Part, merged

NAMES = chain(40)
HERE = "host-a"


def pool() -> PaperCluster:
    cluster = PaperCluster(objects_keyspace())
    cluster.join("a")
    cluster.heartbeat("a")
    return cluster


def item(cluster: PaperCluster, first: int = 0, end: int = 1) -> PutItem:
    return PutItem(cluster.keyspace, 0, 0, b"", join_hashes(NAMES[first:end]), BLOCK_BYTES)


def start(cluster: PaperCluster, *items: PutItem, host: str = HERE) -> PutStarted:
    reply = cluster.ask(PutStart(list(items)), host)
    assert isinstance(reply, PutStarted)
    return reply


def test_a_writer_beside_the_only_node_may() -> None:
    cluster = pool()
    assert start(cluster, item(cluster, 0, 2), item(cluster, 2, 3)).direct_ms == [DIRECT_MS, DIRECT_MS]
    cluster.commit("a", [Block(NAMES[7])])
    assert start(cluster, item(cluster, 6, 8), item(cluster, 8, 9)).direct_ms == [0, DIRECT_MS]
    assert start(cluster, item(cluster, 7, 8)).direct_ms == []


@pytest.mark.parametrize("host", ["", "host-b", "elsewhere"])
def test_writers_of_other_hosts_may_where_there_is_one_node_in_all(host: str) -> None:
    cluster = pool()
    assert start(cluster, item(cluster), host=host).direct_ms == [DIRECT_MS]
    cluster.join("c")
    cluster.heartbeat("c")
    assert start(cluster, item(cluster, 1, 2), host=host).direct_ms == []
    assert start(cluster, item(cluster, 2, 3)).direct_ms == [DIRECT_MS], (
        "its own host's node is one all the same"
    )
    cluster.ask(Drain("c"))
    assert start(cluster, item(cluster, 3, 4), host=host).direct_ms == [DIRECT_MS]
    cluster.ask(Drain("a"))
    assert start(cluster, item(cluster, 4, 5), host=host).answers == [bytes([PutAnswer.NO_NODE])]


def free_bytes_are(cluster: PaperCluster, free_bytes: int) -> None:
    """Of 1 GiB."""
    beat = Heartbeat(cluster.segments["a"].info.segment, 7, free_bytes)
    cluster.core.handle(beat, cluster.now_s, cluster.origin())


def little_room(cluster: PaperCluster) -> None:
    free_bytes_are(cluster, (1 << 30) // SPARE_SHARE - 1)


def unconfirmed_removal(cluster: PaperCluster) -> None:
    cluster.ask(Remove(cluster.keyspace, NAMES[30]))


def inventory_under_way(cluster: PaperCluster) -> None:
    cluster.join("a", inventory=False)
    cluster.report("a")


@pytest.mark.parametrize(
    "happens",
    [
        lambda cluster: cluster.ask(Drain("a")),
        lambda cluster: cluster.join("b", HERE),
        lambda cluster: cluster.ask(SetTenant("default", 1 << 40)),
        unconfirmed_removal,
        inventory_under_way,
    ],
    ids=["drain", "second node", "quota", "removal", "inventory"],
)
def test_when_it_would_not_be_the_same_for_all(happens: Callable[[PaperCluster], object]) -> None:
    cluster = pool()
    assert start(cluster, item(cluster)).direct_ms
    happens(cluster)
    assert start(cluster, item(cluster, 1, 2)).direct_ms == []


def test_a_quota_of_somebody_else_does_not_matter_nor_one_that_was() -> None:
    cluster = pool()
    cluster.ask(SetTenant("other", 1 << 20))
    assert start(cluster, item(cluster)).direct_ms
    cluster.ask(SetTenant("default", 1 << 40))
    cluster.ask(SetTenant("default", AS_CONFIGURED))
    assert start(cluster, item(cluster, 1, 2)).direct_ms


def test_small_objects_may_also_where_there_is_little_room() -> None:
    cluster = pool()
    assert start(cluster, item(cluster)).direct_bytes > SMALL_BYTES
    little_room(cluster)
    reply = start(cluster, item(cluster, 1, 2))
    assert (reply.direct_ms, reply.direct_bytes) == ([DIRECT_MS], SMALL_BYTES)
    assert start(cluster, item(cluster, 0, 1)).direct_ms == []


@pytest.mark.parametrize("room_bytes", [2 * SMALL_BYTES - 2, 20 << 20, 2 * DIRECT_BYTES, 600 << 20])
def test_half_of_the_room_at_most(room_bytes: int) -> None:
    """What is free, less what is promised (one block of this very put) and a part that is left alone."""
    cluster = pool()
    free_bytes_are(cluster, (1 << 30) // SPARE_SHARE + BLOCK_BYTES + room_bytes)
    wanted = min(max(room_bytes // 2, SMALL_BYTES), DIRECT_BYTES)
    assert start(cluster, item(cluster)).direct_bytes == wanted


def test_room_that_victims_leave_is_room_before_the_next_heartbeat() -> None:
    """A full pool that many put into would seem fuller with each put, for up to a second."""
    cluster = pool()
    free_bytes_are(cluster, (1 << 30) // SPARE_SHARE + (20 << 20))

    def room_bytes(number: int) -> int:
        return 2 * start(cluster, item(cluster, number, number + 1)).direct_bytes + number * BLOCK_BYTES

    before = room_bytes(1)
    cluster.commit("a", [Block(name) for name in NAMES[20:]])
    assert room_bytes(2) == before - 20 * BLOCK_BYTES
    cluster.need("a", 15)
    assert room_bytes(3) == before - 5 * BLOCK_BYTES


def test_room_that_is_promised_is_no_room() -> None:
    cluster = pool()
    large = structs.replace(item(cluster, 0, 40), size_bytes=25 << 20)
    cluster.segments["a"].info = structs.replace(cluster.segments["a"].info, page_bytes=1 << 26)
    cluster.join("a")
    cluster.heartbeat("a")
    reply = start(cluster, large)  # 1000 of 1024 MiB
    assert (reply.direct_ms, reply.direct_bytes) == ([DIRECT_MS], SMALL_BYTES)


@pytest.mark.parametrize("named", [{"request_id": "r"}, {"session_id": "s"}])
def test_puts_in_somebodys_name_are_noted(named: dict[str, str]) -> None:
    cluster = pool()
    assert start(cluster, structs.replace(item(cluster), **named)).direct_ms == []


@pytest.mark.parametrize("spec", [chained_spec(), flat_spec()])
def test_blocks_of_engines_are_asked_for(spec: object) -> None:
    cluster = PaperCluster(spec)  # type: ignore[arg-type]
    cluster.join("a")
    cluster.heartbeat("a")
    assert start(cluster, item(cluster)).answers == [bytes([PutAnswer.GO])]
    assert start(cluster, item(cluster, 0, 1)).direct_ms == []


@pytest.mark.parametrize(("ones", "whole"), [([5, 0], [5, 0, 0]), ([], []), ([0, 0], [])])
def test_answers_of_several_shards_are_put_together(ones: list[int], whole: list[int]) -> None:
    cluster = pool()
    items = [item(cluster, number, number + 1) for number in range(3)]
    indices = [np.array([0, 2]), np.array([1])]
    parts = [Part(i, PutStart([items[j] for j in index]), index) for i, index in enumerate(indices)]
    replies = [PutStarted([b"a", b"c"], [b"0", b"2"], [ones[0], ones[1]] if ones else [])]
    replies.append(PutStarted([b"b"], [b"1"], direct_bytes=SMALL_BYTES))
    answer = merged(PutStart(items), parts, replies)
    expected = [whole[0], whole[2], whole[1]] if whole else []
    assert answer == PutStarted([b"a", b"b", b"c"], [b"0", b"1", b"2"], expected, SMALL_BYTES)


# ---------------------------------------------------------------- what is reported


def reported(cluster: PaperCluster, name: str, *block_hashes: bytes) -> tuple[list[int], Message]:
    """Generations of new slots, and the answer to the report of them."""
    segment = cluster.segments[name]
    committed = [(0, Block(one), segment.fill(0, Block(one))) for one in block_hashes]
    op = cluster.entries(committed)
    message = Report(segment.info.segment, segment.stream, segment.sequence, [*segment.outbox, op])
    segment.outbox.clear()
    outcome: Outcome = cluster.core.handle(message, cluster.now_s, cluster.origin())
    segment.sequence += 1
    cluster.deliver(outcome.pushes)
    return [slot[1] for _, _, slot in committed], outcome.reply


def test_what_is_there_already_is_refused_wherever_it_lies() -> None:
    cluster = pool()
    cluster.join("b", "host-b")
    assert isinstance(reported(cluster, "b", NAMES[0])[1], Done)
    for name in ("a", "b"):
        generations, answer = reported(cluster, name, NAMES[0], NAMES[1 if name == "a" else 2])
        assert isinstance(answer, Refused)
        assert u64s(answer.generations).tolist() == generations[:1]
        assert answer.answers == bytes([PutAnswer.EXISTS])
        assert cluster.segments[name].drops, "and is to be dropped"
    assert [len(cluster.segments[name].held) for name in "ab"] == [1, 2]
    cluster.core.validate()


def test_the_same_twice_in_one_report() -> None:
    cluster = pool()
    generations, answer = reported(cluster, "a", NAMES[0], NAMES[0])
    assert isinstance(answer, Refused) and u64s(answer.generations).tolist() == generations[1:]


def test_what_is_doubted_is_busy_as_for_those_who_ask() -> None:
    cluster = pool()
    (generation,), _ = reported(cluster, "a", NAMES[0])
    slot = cluster.segments["a"].held[0, NAMES[0]][0][0]
    bad = ReportBad(cluster.keyspace, 0, NAMES[0], cluster.segments["a"].info.segment, slot, generation)
    cluster.ask(bad)
    assert start(cluster, item(cluster)).answers == [bytes([PutAnswer.BUSY])]
    _, answer = reported(cluster, "a", NAMES[0])
    assert isinstance(answer, Refused) and answer.answers == bytes([PutAnswer.BUSY])


def test_a_copy_of_a_node_that_is_away_gives_way() -> None:
    cluster = pool()
    cluster.join("b", "host-b")
    reported(cluster, "b", NAMES[0])
    cluster.disconnect("b")
    _, answer = reported(cluster, "a", NAMES[0])
    assert isinstance(answer, Done)
    cluster.join("b", inventory=False)
    cluster.report("b", *cluster.inventory("b"), InventoryEnd())
    assert [len(cluster.segments[name].held) for name in "ab"] == [1, 0]
    cluster.core.validate()


def test_put_after_a_removal_is_new() -> None:
    cluster = pool()
    reported(cluster, "a", NAMES[0])
    cluster.ask(Remove(cluster.keyspace, NAMES[0], force=True))
    assert isinstance(reported(cluster, "a", NAMES[0])[1], Done)
    assert len(cluster.segments["a"].held) == 1
