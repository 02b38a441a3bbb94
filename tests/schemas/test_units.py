"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.units import format_size, parse_duration_s, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("4GB", 4 << 30),
        ("4 GiB", 4 << 30),
        ("4g", 4 << 30),
        (" 512MiB ", 512 << 20),
        ("1.5k", 1536),
        ("2TB", 2 << 40),
        ("7b", 7),
        (7, 7),
    ],
)
def test_parse_size(text: object, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GB", "4 geese", "-1", "1e9", "4GBB", "4PB", "0x10", None, True, 1.5, []]
)
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 1 << 50))
def test_what_is_shown_can_be_read_back_to_a_twentieth(size_bytes: int) -> None:
    assert abs(parse_size(format_size(size_bytes)) - size_bytes) <= max(1, size_bytes // 20)


def test_format_size() -> None:
    shown = [format_size(size) for size in (0, 1023, 1536, 3 << 20, 4 << 30, 5 << 40, 5000 << 40)]
    assert shown == ["0 B", "1023 B", "1.5 KiB", "3.0 MiB", "4.0 GiB", "5.0 TiB", "5000.0 TiB"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90", 90), ("1.5s", 1.5), (" 15m ", 900), ("2H", 7200), ("1d", 86400)]
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1w", "1m30s", "9" * 400, "inf"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="15m"):
        parse_duration_s(text)
