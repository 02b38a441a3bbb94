"""The demo's parts that need no engine."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest

from moonpool.connector.demo import engine, run
from moonpool.connector.demo.conversation import QUESTIONS, messages
from moonpool.connector.demo.rows import COLUMNS, Row, as_json, as_table, verdict
from moonpool.schemas.errors import ConfigError, RpcFailed

ROW = Row("engine-2", 1, 1975, 32, 1952, 2.5, 0.25, True, "a long\nanswer " * 10)


def test_json_has_exactly_these_fields() -> None:
    (row,) = as_json([ROW])["rows"]
    assert row == {
        "engine": "engine-2",
        "turn": 1,
        "prompt_tokens": 1975,
        "block_tokens": 32,
        "cached_tokens": 1952,
        "ttft_cold_s": 2.5,
        "ttft_warm_s": 0.25,
        "identical_output": True,
    }


def test_the_table_says_what_was_not_cached_and_what_differs() -> None:
    cold = Row("engine-1", 1, 1975, 32, 0, 2.5, None, False, "x")
    first, second = as_table([cold, ROW])
    assert len(first) == len(second) == len(COLUMNS)
    assert first[3:6] == ["-", "2.50 s", "-"]
    assert first[6] == "DIFFERENT: x"
    assert second[6].startswith("same: a long answer")
    assert len(second[6]) < 80


def test_the_verdict() -> None:
    cold = dataclasses.replace(ROW, engine="engine-1", cached_tokens=0, ttft_warm_s=None)
    assert verdict([cold, ROW]) == ""
    assert "differs" in verdict([dataclasses.replace(cold, identical_output=False), ROW])
    assert "engine-2 took nothing" in verdict([ROW, dataclasses.replace(ROW, cached_tokens=0)][1:])


def test_each_turn_extends_the_one_before() -> None:
    answers = [f"answer {turn}" for turn in range(len(QUESTIONS))]
    chats = [messages(turn, answers[:turn]) for turn in range(len(QUESTIONS))]
    for before, after in itertools.pairwise(chats):
        assert after[: len(before)] == before
        assert len(after) == len(before) + 2
    assert [chat[-1]["content"] for chat in chats] == list(QUESTIONS)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "NEEDED", ("no_such_package",))
    with pytest.raises(ConfigError, match=r"no_such_package: is not installed; `make setup`"):
        run.check_installed()


def test_an_engine_that_does_not_start_shows_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport sys\nprint('no memory for this', file=sys.stderr)\n")
    script.chmod(0o700)
    monkeypatch.setattr(engine.sys, "executable", str(script))
    with (
        engine.EngineProcess("engine-1", {}, tmp_path / "log") as process,
        pytest.raises(RpcFailed) as caught,
    ):
        process.wait_ready()
    assert "engine-1: its process ended" in str(caught.value)
    assert "no memory for this" in str(caught.value)
