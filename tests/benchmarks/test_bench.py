"""`moonpool bench --quick`: every case is there, and what it moved was compared. Nothing is timed."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast, get_type_hints

import bench_table
import pytest

from moonpool.benchmarks import lookup_group, transfers
from moonpool.benchmarks.arena import Arena, Shape
from moonpool.benchmarks.groups import GROUPS
from moonpool.benchmarks.progress import Progress
from moonpool.benchmarks.scale import FULL, ORDINARY, Scale
from moonpool.benchmarks.subjects.base import Pieces, Subject
from moonpool.benchmarks.worker import Commands
from moonpool.store_client.cli.bench import bench

pytestmark = pytest.mark.mooncake

PLACES = ("host", "tcp")
SHAPES = [
    f"{size}_f{fragments}_{batch}"
    for size, fragments, batch in itertools.product(
        ("64k", "256k", "1m", "4m"), (1, 32, 128), ("b16", "b128")
    )
]
KEYS = {"case", "group", "subject", "median", "p99", "unit", "samples", "ratio_to_mooncake", "ratio_to_limit"}


def data_cases() -> set[tuple[str, str]]:
    """(group, case) of put, get, small and latency; with and without checksums."""
    found = {
        (do, f"{do}_{place}_{shape}")
        for do, place, shape in itertools.product(("put", "get"), PLACES, SHAPES)
    }
    for do, place in itertools.product(("put", "get"), PLACES):
        found.add(("small", f"small_{do}_{place}"))
        found |= {("latency", f"latency_{do}_{place}_{size}") for size in ("4k", "64k")}
    return found | {(group, f"{case}_sums") for group, case in found}


def exist_cases() -> set[tuple[str, str]]:
    asked, shapes = ("1", "100", "1000", "5000"), ("hit", "miss", "hit_tcp", "miss_tcp")
    cases = {f"exist_{count}_{shape}" for count, shape in itertools.product(asked, shapes)}
    return {
        ("exist", case)
        for case in cases
        if not case.endswith("_tcp") or case.startswith(("exist_1_", "exist_100_"))
    }


def other_cases() -> set[tuple[str, str]]:
    found = {("memory", "memory_tp8")}
    for table, shape, clients in itertools.product(
        ("tp1", "tp8", "tp1_5m"), ("hit", "half", "miss"), ("1c", "8c")
    ):
        name = f"lookup_{table}_{shape}_{clients}"
        found |= {("lookup", name), ("lookup", f"{name}_cpu")}
    for size in ("1m", "4k"):
        found |= {("churn", f"churn_{size}"), ("churn", f"churn_{size}_failed")}
    found |= {("recovery", f"recovery_{what}") for what in ("puts", "found", "lost")}
    for do, load in itertools.product(("put", "get"), ("greedy", "evicting")):
        found |= {("mixed", f"mixed_{do}_4k_{load}"), ("mixed", f"mixed_rate_{load}")}
    return found


STORES = ("", "etcd_") if shutil.which("etcd") else ("",)
ALONE = {("takeover", f"takeover_{store}{what}") for store in STORES for what in ("first_hit", "log", "all")}
"""Cases that nobody else has: Mooncake's master keeps nothing to take over."""


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page goes."""
    return tmp_path_factory.mktemp("bench") / "page.html"


@pytest.fixture(scope="module")
def document(html: Path) -> dict[str, Any]:
    program = [sys.executable, "-m", "moonpool.store_client.cli.main"]
    command = [*program, "bench", "--quick", "--json", "--html", str(html)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_case_is_there(document: dict[str, Any]) -> None:
    assert document.keys() == {"machine", "cases"}
    assert all(case.keys() == KEYS | {"verified"} for case in document["cases"])
    ours = {(case["group"], case["case"]) for case in document["cases"] if case["subject"] == "moonpool"}
    assert ours == data_cases() | exist_cases() | other_cases() | ALONE


def test_opponents_and_limits_ran_beside_it(document: dict[str, Any]) -> None:
    plain = {case for case in data_cases() if not case[1].endswith("_sums")}
    # What Mooncake's master knew is lost with it: it never finds all again.
    compared = plain | exist_cases() | other_cases() - {("recovery", "recovery_found")}
    for subject, wanted in {"mooncake": compared, "limit": plain}.items():
        assert {(c["group"], c["case"]) for c in document["cases"] if c["subject"] == subject} == wanted
    for case in document["cases"]:
        compared = case["subject"] == "moonpool" and (case["group"], case["case"]) not in ALONE
        failures = case["case"].endswith(("_failed", "_lost", "recovery_found"))  # no ratio to nothing
        assert (case["ratio_to_mooncake"] is not None) >= (compared and not failures)
        moved = case["group"] in ("put", "get", "small", "latency")
        assert (case["ratio_to_limit"] is not None) >= (compared and moved)


def test_who_calls_beside_another_one_goes_on_for_as_long(tmp_path: Path) -> None:
    class Slow:
        """Takes a ms for each object."""

        def register(self, address: int, size_bytes: int) -> None: ...

        def put(self, keys: Sequence[str], pieces: Pieces) -> int:
            time.sleep(0.001)
            return len(keys)

        def get(self, keys: Sequence[str], pieces: Pieces) -> int:
            return 0

    path = tmp_path / "arena"
    path.write_bytes(bytes(2 * 65536))
    commands = Commands(cast(Subject, Slow()), Arena(path, 65536))
    assert len(commands.puts_and_gets("few-", 4096, calls=3)["puts"]) == 3
    start_s = time.monotonic()
    answer = commands.puts_and_gets("long-", 4096, calls=10_000, seconds=0.05)
    assert time.monotonic() - start_s >= 0.05
    assert 1 <= len(answer["puts"]) <= 50 and len(answer["gets"]) == len(answer["puts"])


@pytest.mark.parametrize(
    ("scale", "left_out"), [(FULL, ""), (ORDINARY, "5m 4m_f1_b128 4m_f32_b128 4m_f128_b128")]
)
def test_the_ordinary_form_leaves_out_what_takes_longest(
    monkeypatch: pytest.MonkeyPatch, scale: Scale, left_out: str
) -> None:
    names: list[str] = []
    monkeypatch.setattr(
        transfers, "_case", lambda scale, workers, place, name, shape: names.append(f"{place}_{name}") or []
    )
    monkeypatch.setattr(lookup_group, "_case", lambda scale, sides, name, clients: names.append(name) or [])
    monkeypatch.setattr(lookup_group, "_sides", lambda *_: [])
    transfers.cases(scale, [], "host", Progress())
    lookup_group.run(scale, Progress(), frozenset({"lookup"}))
    lookups = {name for group, name in other_cases() if group == "lookup" and not name.endswith("_cpu")}
    every = lookups | {f"host_{shape}" for shape in SHAPES}
    assert every - set(names) == {name for name in every if any(part in name for part in left_out.split())}


@pytest.mark.parametrize(
    ("shape", "on_one_host", "over_tcp"),
    [
        (Shape(16, 64 << 10), 16, 16),
        (Shape(128, 64 << 10), 4, 4),
        (Shape(16, 1 << 20), 2, 2),
        (Shape(16, 4 << 20), 1, 1),
        (Shape(16, 64 << 10, fragments=32), 16, 1),
        (Shape(128, 64 << 10, fragments=128), 4, 1),
    ],
)
def test_a_row_of_batches_is_bounded_and_each_has_a_place_of_its_own(
    shape: Shape, on_one_host: int, over_tcp: int
) -> None:
    for place, batches in (("host", on_one_host), ("tcp", over_tcp)):
        assert ORDINARY.row(shape, place) == FULL.row(shape, place) == batches
    places = [batch.place for place in (1, 2) for batch in replace(shape, place=place).row(on_one_host)]
    assert len(set(places)) == 2 * on_one_host


def test_contents_were_verified(document: dict[str, Any]) -> None:
    assert [case for case in document["cases"] if not case["verified"]] == []
    assert all(case["samples"] >= 1 for case in document["cases"])
    lost = [case for case in document["cases"] if case["case"].endswith(("_failed", "_lost"))]
    assert [case["median"] for case in lost if case["subject"] == "moonpool"] == [0, 0, 0]
    assert all(case["median"] > 0 for case in document["cases"] if case not in lost)


def test_the_page_shows_every_case_and_loads_nothing(document: dict[str, Any], html: Path) -> None:
    text = html.read_text()
    assert all(case["case"] in text for case in document["cases"])
    assert "prefers-color-scheme: dark" in text
    loaded: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            loaded.extend(name for name, _ in attrs if name in ("src", "href"))

    Links().feed(text)
    assert not loaded


def test_the_table_of_the_docs_is_made_of_it(document: dict[str, Any]) -> None:
    table = list(bench_table.lines(document))
    assert sum(line.startswith("| `") for line in table) == len({case["case"] for case in document["cases"]})


def test_help_names_every_group() -> None:
    (argument,) = get_type_hints(bench, include_extras=True)["groups"].__metadata__
    assert argument.help.removeprefix("Any of ").partition(";")[0].split(", ") == list(GROUPS)
