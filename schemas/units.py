"""Sizes and durations as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)\s*", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(value: object) -> int:
    """Bytes of a size: an int, or text such as "4GB", "512 MiB", "1048576". K, M, G and T are powers of 1024,
    with or without the i, as Mooncake's files mean them. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'{value!r} is not a size; write bytes or something like "4GB"')
    return int(float(found[1]) * 1024 ** _POWER[found[2].lower()])


def parse_duration_s(text: str) -> float:
    """Seconds of a duration such as "90", "90s", "15m", "2h", "1d". Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError('a number of seconds, or something like "15m"')
    return float(found[1]) * _SECONDS[found[2].lower()]


def format_size(size_bytes: float) -> str:
    """A size for people: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
