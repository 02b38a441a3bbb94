"""Every command of README and docs is run here, or named below with the reason why not."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from support.doc_blocks import PAGES, ROOT, Block, blocks, commands, named
from support.doc_session import Script, run

NOT_RUN: dict[str, str] = {
    r"make (setup|lint|test|test-fast|soak)": "what CI itself does, from a fresh clone",
    r"make (bench|sanitize)": "minutes",
    r"make demo": "tests/demo/test_demo.py runs it",
    r"make docs": "would write; test_documents.py looks whether it had anything to do",
    r"python -m vllm\..* --model MODEL .*": "an engine: tests/demo/test_quick_start.py runs such a line",
    r"moonpool bench .*": "minutes",
    r"python scripts/bench_table.py run.json": "tells of a bench's JSON: tests/benchmarks/test_bench.py makes one",
    r"ETCDCTL_API=3 etcdctl .*": "a client of its own package, which nothing else here needs",
    r"docker .*": "no Docker engine is at hand; tests/helm/test_dockerfile.py reads the Dockerfile",
    r"helm .*": "no cluster is at hand; tests/helm renders, checks and packages the chart by Helm's own library",
    r"kubectl .*": "no cluster is at hand",
}
"""Commands that are not run here, as patterns of whole lines, with the reason. One that no page has is an error."""

SMALLER: dict[str, str] = {
    r"(?<=--size )\d+(GB|GiB)": "64MB",
    r"--requests \d+": "--requests 100",
    r"--seed 7": "--seed 7 --requests 100",
    r"--engines \S+": "--engines 2",
    r"--seconds \d+": "--seconds 2",
}
"""Sizes of real machines, as small as tests want them."""

FILES = dict.fromkeys(
    ("trace.jsonl", "conversation_trace.jsonl"), ROOT / "tests/policy/data/chat_small.jsonl"
)
"""Files that pages take for granted."""

GIVEN = {
    "docs/troubleshooting.md": "moonpool serve --size 64MB",
    "docs/scaling.md": "etcd --data-dir /tmp/moonpool/etcd",
}
"""Servers that run already when a page is read."""

ELSEWHERE = {"docs/quick-start.md": "tests/demo/test_quick_start.py"}
"""Pages whose commands have a test of their own."""

PATH = [Path(sys.executable).parent, ROOT / ".venv" / "bin"]


def left_out(command: str) -> str | None:
    """The entry of NOT_RUN that names a command."""
    return next((pattern for pattern in NOT_RUN if re.fullmatch(pattern, command)), None)


def changed(text: str) -> str | None:
    """A command as it is run."""
    if left_out(text):
        return None
    for pattern, smaller in SMALLER.items():
        text = re.sub(pattern, smaller, text)
    return text


RUNS = [page for page in PAGES if named(page) not in ELSEWHERE and Script(blocks(page), changed).commands > 1]


@pytest.mark.parametrize("page", RUNS, ids=named)
def test_commands_of_a_page_work(page: Path, tmp_path: Path) -> None:
    for name, source in FILES.items():
        shutil.copy(source, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    logs = tmp_path / "logs"
    logs.mkdir()
    given = [Block("sh", f"{GIVEN[named(page)]}\n")] if named(page) in GIVEN else []
    run(Script([*given, *blocks(page)], changed), cwd=tmp_path, logs=logs, path=PATH, timeout_s=360)


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    page = [Block("sh", "true\nmoonpool status --master 127.0.0.1:9  # nobody there\ntouch late\n")]
    with pytest.raises(AssertionError, match=r"FAILED: moonpool status --master 127\.0\.0\.1:9"):
        run(Script(page, changed), cwd=tmp_path, logs=tmp_path, path=PATH, timeout_s=180)
    assert not (tmp_path / "late").exists()


def test_commands_that_are_not_run_are_still_there() -> None:
    found = {left_out(command) for page in PAGES for command in commands(page)}
    assert found - {None} == NOT_RUN.keys()
    for reason in NOT_RUN.values():
        for name in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
            assert (ROOT / name).exists(), reason


def test_pages_that_are_run_elsewhere_are_run_there() -> None:
    for page, test in ELSEWHERE.items():
        assert (ROOT / page).exists()
        assert Path(page).name in (ROOT / test).read_text()
