"""What the demo saw: one Row an (engine, turn), as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of an engine with the pool, beside the same prompt on the engine without it.

    `cached_tokens`: prompt tokens that came from the pool. `ttft_warm_s`: time to first token with them; None where
    nothing was cached. `identical_output`: the tokens equal those of the engine without a pool.
    """

    engine: str
    turn: int
    prompt_tokens: int
    block_tokens: int
    cached_tokens: int
    ttft_cold_s: float
    ttft_warm_s: float | None
    identical_output: bool
    answer: str = ""


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The document that `--json` prints. The answers' texts are for people only."""
    return {
        "rows": [{name: value for name, value in asdict(row).items() if name != "answer"} for row in rows]
    }


def verdict(rows: Sequence[Row]) -> str:
    """What is wrong with these rows; empty where nothing is."""
    if not all(row.identical_output for row in rows):
        return "an answer differs from that of the engine without a pool: this is a bug, please report it"
    if not any(row.cached_tokens for row in rows if row.engine == rows[-1].engine):
        return f"{rows[-1].engine} took nothing from the pool: run it with --logs FOLDER to see why, or on an idle machine"
    return ""


COLUMNS = ("engine", "turn", "prompt tokens", "from pool", "TTFT without", "TTFT with", "answer")


def as_table(rows: Sequence[Row]) -> list[list[str]]:
    """The cells of the table, one list a row, in the order of COLUMNS."""
    return [
        [
            row.engine,
            str(row.turn),
            str(row.prompt_tokens),
            str(row.cached_tokens) if row.cached_tokens else "-",
            f"{row.ttft_cold_s:.2f} s",
            f"{row.ttft_warm_s:.2f} s" if row.ttft_warm_s is not None else "-",
            ("same: " if row.identical_output else "DIFFERENT: ") + _shortened(row.answer),
        ]
        for row in rows
    ]


def _shortened(text: str, limit: int = 60) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
