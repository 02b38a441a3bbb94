"""docs/quick-start.md, word by word: from a clean clone to a hit in the second engine."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.doc_blocks import ROOT, blocks
from support.doc_session import Script, run

from moonpool.connector.demo.model import ensure_model

PAGE = ROOT / "docs" / "quick-start.md"
COPIES = """moonpool status --json | python -c 'import json, sys; print(json.load(sys.stdin)["counters"]["copies"])'"""
INSTEAD = {
    "make setup": f"{sys.executable} {ROOT}/tests/support/shared_venv.py",  # it made what this test runs in
    "make demo": f"ln -s {ROOT}/.cache .cache",  # tests/demo/test_demo.py runs it; here is what it leaves
    # An engine saves behind its answers; a person is never as fast as a script.
    "moonpool status": f"until [ $({COPIES}) -gt 5 ]; do sleep 0.1; done; moonpool status",
}


@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_the_quick_start_reaches_a_hit(tmp_path: Path) -> None:
    ensure_model(ROOT / ".cache", print)
    (tmp_path / "logs").mkdir()
    script = Script(
        blocks(PAGE), lambda command: INSTEAD.get(command, command.replace("REPOSITORY", str(ROOT)))
    )
    said = run(script, cwd=tmp_path, logs=tmp_path / "logs", path=[], timeout_s=1100)
    assert "moonpool 0." in said
    answers = [json.JSONDecoder().raw_decode(said, found.start())[0] for found in re.finditer('{"id":', said)]
    first, second = (answer["choices"][0]["text"] for answer in answers)
    assert first == second
    hits = re.search(r"^vllm:moonpool_match_hit_tokens_total\S* ([\d.]+)", said, re.MULTILINE)
    assert hits and float(hits[1]) >= 128, said
