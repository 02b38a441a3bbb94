"""docs/mooncake-compat.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.mooncake_differences import DIFFERENCES

from moonpool.store_client.mooncake import MooncakeDistributedStore

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "mooncake-compat.md").read_text()
NOT_PROVIDED = re.findall(r"`(\w+)`", PAGE.split("## Not provided")[1].split("\n\n")[2])


def test_every_difference_is_listed_and_nothing_else() -> None:
    section = PAGE.split("## Differences")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE)) == DIFFERENCES


def test_every_difference_is_shown_by_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    shown = set(re.findall(r'(?:expected|allowed)\(\s*"([\w-]+)"', tests)) | set(
        re.findall(r"difference: ([\w-]+)", tests)
    )
    assert shown == DIFFERENCES.keys()


def test_what_is_not_provided_is_not_there() -> None:
    assert NOT_PROVIDED
    assert [name for name in NOT_PROVIDED if hasattr(MooncakeDistributedStore, name)] == []


@pytest.mark.mooncake
def test_everything_else_is_there() -> None:
    from mooncake.store import MooncakeDistributedStore as Real

    calls = {name for name in dir(Real) if not name.startswith("_")}
    assert {name for name in calls if not hasattr(MooncakeDistributedStore, name)} == set(NOT_PROVIDED)
