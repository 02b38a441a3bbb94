"""LMCache's own Mooncake connector, for real, where LMCACHE_PACKAGES names a folder that has it:

pip install --no-deps --target FOLDER lmcache==0.5.6 aiofile caio
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.mooncake_pools import Pool

PACKAGES = os.environ.get("LMCACHE_PACKAGES", "")
RUN = Path(__file__).parents[1] / "support" / "lmcache_run.py"


@pytest.mark.skipif(not PACKAGES, reason="LMCACHE_PACKAGES names no folder with LMCache in it")
def test_what_lmcache_puts_it_gets(own_pool: Pool) -> None:
    code = f"import sys, runpy; sys.path.append({PACKAGES!r}); sys.argv = {[str(RUN), own_pool.kind, own_pool.master.address]!r}"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; runpy.run_path(sys.argv[0], run_name='__main__')"],
        capture_output=True,
        text=True,
        env={**os.environ, "LMCACHE_LOG_LEVEL": "ERROR"},
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines == [{"before": [0] * 5, "after": [1] * 5, "contained": 5, "right": [True] * 5}] * 2, (
        done.stderr
    )
