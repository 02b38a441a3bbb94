"""Small parts: expiring sets, the save gate, worker threads, lookups, records, settings, block tables."""

from __future__ import annotations

import pickle
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.waiting import at_most, wait_until

from moonpool.connector.callers import calling_object
from moonpool.connector.counters import Counters
from moonpool.connector.expiring import ExpiringSet
from moonpool.connector.extra_config import read_extra_config
from moonpool.connector.fake_pool import FakePool
from moonpool.connector.gate import OPEN_BLOCKS, PAUSE_MAX_S, PROBE_BLOCKS, SaveGate
from moonpool.connector.groups import Group, GroupKind, GroupPlan
from moonpool.connector.identity import Identity
from moonpool.connector.lookups import Lease, PoolLookups, Question
from moonpool.connector.records import JobOutcome, RankFacts, StepMeta, WorkerReport
from moonpool.connector.tables import BlockTables
from moonpool.connector.workers import Workers
from moonpool.schemas.errors import ConfigError


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 3)), max_size=40))
def test_expiring_set(events: list[tuple[str, float]]) -> None:
    members, model, now = ExpiringSet(2.0, 4), {}, 100.0
    for name, wait in events:
        now += wait
        model.pop(name, None)
        model[name] = now + 2.0
        if len(model) > 4:
            del model[next(iter(model))]
        members.add([name.encode()], now)
        members.validate()
        for each in "abcdef":
            assert members.holds(each.encode(), now) == (model.get(each, 0.0) > now)
        members.expire(now)
        assert len(members) == sum(until > now for until in model.values())
        model = {each: until for each, until in model.items() if until > now}


def test_the_gate_lets_probes_through_at_growing_pauses() -> None:
    gate = SaveGate()
    assert gate.budget(0.0) == OPEN_BLOCKS
    gate.failed(0.0, probe=False)
    gate.failed(0.0, probe=False)  # a job that was under way already
    assert gate.budget(0.4) == 0
    now, pauses = 0.5, []
    for _ in range(8):
        assert gate.budget(now) == PROBE_BLOCKS
        gate.sent(now)
        assert gate.budget(now) == 0
        gate.failed(now, probe=True)
        gate.validate()
        step = 0.0
        while not gate.budget(now + step):
            step += 0.25
        pauses.append(step)
        now += step
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MAX_S
    gate.succeeded()
    assert gate.budget(now) == OPEN_BLOCKS


def test_workers_are_bounded_and_survive_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def handle(job: int) -> None:
        begun.set()
        go.wait(60)
        if job == 1:
            raise ZeroDivisionError
        done.append(job)

    workers: Workers[int] = Workers("test", handle, threads=1, queue_max=2)
    assert workers.submit(0)
    assert begun.wait(60)
    assert workers.submit(1)
    assert workers.submit(2)
    assert not workers.submit(3)
    go.set()
    wait_until(lambda: len(done) == 2)
    workers.close()
    assert done == [0, 2]
    assert "lost a job" in caplog.text
    assert not workers.submit(4)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("moonpool-test")]


def test_a_thread_that_begins_badly_does_its_jobs_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else would report them: a request would wait for its load for ever."""
    handled = threading.Event()

    def begin() -> None:
        raise RuntimeError("no such device")

    workers: Workers[int] = Workers("test", lambda job: handled.set(), threads=1, queue_max=2, begin=begin)
    assert workers.submit(0)
    assert handled.wait(60)
    workers.close()
    assert "could not begin" in caplog.text


def test_lookups_answer_from_threads() -> None:
    pool, counters = FakePool(), Counters()
    facts = RankFacts(1, 0, (8,), ("l",), "w")
    plan = GroupPlan((Group(0, GroupKind.FULL, 4),), 4)
    identity = Identity("m", "t", 32, plan, {}, (facts,))
    lookups = PoolLookups(pool, counters, timeout_s=30.0, adapter_digest=lambda _: None)
    try:
        assert lookups.ask(Question("r", 7, identity, [bytes(32)], None, True))
        assert lookups.ask(Question("lora", 8, identity, [bytes(32)], "adapter", True))
        answers = []

        def all_answered() -> bool:
            answers.extend(lookups.take())
            return len(answers) == 2

        wait_until(all_answered)
        by_name = {answer.request_id: answer for answer in answers}
        assert by_name["r"].ready == (0,)
        assert by_name["r"].specs == identity.specs()
        assert by_name["lora"].specs == ()  # an adapter that can't be read shares nothing
        assert lookups.renew([Lease(identity.specs()[0].digest(), [bytes(32)])])
        pool.away = True
        assert not lookups.clear([bytes(16)])
    finally:
        lookups.close()


class UnconfirmedPool(FakePool):
    """Its nodes don't confirm: a removal waits for them as long as its caller lets it, and succeeds."""

    def __init__(self, waits: float) -> None:
        super().__init__()
        self.waits = waits
        self.cleared: list[bytes] = []

    def clear(self, keyspace: bytes, *, timeout_s: float | None = None) -> object:
        assert timeout_s is not None and timeout_s > 0
        time.sleep(timeout_s * self.waits)
        self.cleared.append(keyspace)
        return None


@pytest.mark.parametrize("waits", [0.5, 1.5], ids=["in time", "late"])
def test_clearing_many_keyspaces_has_one_deadline(waits: float) -> None:
    """vLLM's scheduler stands still meanwhile."""
    pool = UnconfirmedPool(waits)
    lookups = PoolLookups(pool, Counters(), timeout_s=0.5, adapter_digest=lambda _: None)
    keyspaces = [bytes([number]) * 16 for number in range(12)]
    try:
        started_s = time.monotonic()
        whole = lookups.clear(keyspaces)
        assert time.monotonic() - started_s < at_most(0.5)
        # Waiting for the first ones costs the last ones nothing, unless the pool takes more than it was given.
        assert whole == (pool.cleared == keyspaces)
        assert whole or waits > 1
    finally:
        lookups.close()


def test_reports_of_workers_add_up() -> None:
    one = WorkerReport({1: JobOutcome(1, b"\1\1\0", {"FAILED": 1})}, {"r": [(0, 2)]})
    two = WorkerReport(
        {1: JobOutcome(1, b"\0\1\1", {"FAILED": 1}), 2: JobOutcome(1, b"", {})}, {"r": [(0, 0)]}
    )
    one.merge(pickle.loads(pickle.dumps(two)))
    assert one.jobs[1] == JobOutcome(2, b"\0\1\0", {"FAILED": 2})
    assert one.jobs[2].ranks == 1
    assert one.bad_loads == {"r": [(0, 2), (0, 0)]}
    assert WorkerReport().empty
    assert not one.empty
    assert pickle.loads(pickle.dumps(StepMeta())) == StepMeta()


def test_settings_come_from_one_flat_table(tmp_path: object) -> None:
    connector, client = read_extra_config(
        {"min_hit_tokens": 64, "master": "pool:1", "segment_size": "1MB"}, {"MOONPOOL_MASTER": "other:2"}
    )
    assert (connector.min_hit_tokens, client.master, client.segment_size) == (64, "pool:1", 1 << 20)
    assert read_extra_config({}, {"MOONPOOL_MASTER": "other:2"})[1].master == "other:2"
    with pytest.raises(ConfigError, match="did you mean min_hit_tokens"):
        read_extra_config({"min_hit_token": 1}, {})
    with pytest.raises(ConfigError, match="load_threads"):
        read_extra_config({"load_threads": 0}, {})


def test_mooncakes_file_is_read_where_it_is_named(tmp_path: object) -> None:
    path = f"{tmp_path}/mooncake.json"
    with open(path, "w") as stream:
        stream.write('{"master_server_address": "pool:7", "tenant_id": "t"}')
    environment = {"MOONCAKE_CONFIG_PATH": path}
    assert read_extra_config({}, environment)[1].master == "pool:7"
    assert read_extra_config({"master": "pool:8"}, environment)[1].master == "pool:8"


def test_block_tables_before_vllm_had_exact_ones() -> None:
    tables = BlockTables()

    def step(new: list[object], ids: list[str], blocks: list[object], resumed: set[str]) -> object:
        cached = SimpleNamespace(req_ids=ids, new_block_ids=blocks, resumed_req_ids=resumed)
        return SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=cached)

    lookup = tables.of_step(step([SimpleNamespace(req_id="a", block_ids=([1, 2],))], [], [], set()))
    assert lookup("a") == [[1, 2]]
    lookup = tables.of_step(step([], ["a"], [([3],)], set()))
    assert lookup("a") == [[1, 2, 3]]
    lookup = tables.of_step(step([], ["a"], [None], set()))
    assert lookup("a") == [[1, 2, 3]]
    lookup = tables.of_step(step([], ["a"], [([9],)], {"a"}))
    assert lookup("a") == [[9]]
    tables.forget("a")
    assert lookup("a") is None


class _Outer:
    def call(self) -> object:
        return _Inner().call()


class _Inner:
    def call(self) -> object:
        return calling_object(lambda owner: isinstance(owner, _Outer))


def test_a_caller_is_found_up_the_stack() -> None:
    assert isinstance(_Outer().call(), _Outer)
    assert _Inner().call() is None
