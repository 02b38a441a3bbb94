"""Errors: codes are unique, the tree at the top of the file is the real one, every sentence can be made."""

from __future__ import annotations

import re
import string

import pytest

from moonpool.schemas import errors
from moonpool.schemas.errors import CODES, MoonpoolError, from_wire


def every_class(root: type[MoonpoolError] = MoonpoolError) -> list[type[MoonpoolError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in every_class(child))]


def test_codes_are_unique() -> None:
    own = [kind.code for kind in every_class() if "code" in vars(kind) and kind is not MoonpoolError]
    assert len(own) == len(set(own)) == len(CODES)
    assert all(code < 0 for code in own)


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = {name: int(code) for name, code in re.findall(r"── (\w+) +(-\d+)", errors.__doc__ or "")}
    assert drawn == {kind.__name__: code for code, kind in CODES.items()}
    branches = set(re.findall(r"── (\w+)$", errors.__doc__ or "", re.MULTILINE))
    assert branches == {kind.__name__ for kind in every_class()} - drawn.keys() - {"MoonpoolError"}


@pytest.mark.parametrize("kind", list(CODES.values()), ids=lambda kind: kind.__name__)
def test_every_sentence_is_made_of_the_facts_its_docstring_names(kind: type[MoonpoolError]) -> None:
    needed = {name for _, name, _, _ in string.Formatter().parse(kind.sentence) if name}
    said = re.search(r"Facts: ([\w, ()]+)", kind.__doc__ or "")
    if said:
        assert needed <= set(re.findall(r"\w+", said[1]))
    error = kind(**dict.fromkeys(needed, 7))
    assert str(error)
    assert "{" not in str(error)
    assert error.facts == dict.fromkeys(needed, 7)


def test_an_error_crosses_the_wire_as_its_class() -> None:
    sent = errors.NoSpace(wanted_bytes=5, where="node a")
    received = from_wire(sent.code, str(sent))
    assert type(received) is errors.NoSpace
    assert str(received) == str(sent) == "no space for 5 bytes in node a, and nothing there may be evicted"
    assert type(from_wire(-99999, "newer")) is MoonpoolError
    assert str(from_wire(-1, "with {braces}")) == "with {braces}"
