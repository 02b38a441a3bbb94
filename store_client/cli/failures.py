"""What an error does to a command: one sentence, what to do next, and an exit code."""

from __future__ import annotations

import sys

from moonpool.schemas import errors
from moonpool.schemas.errors import MoonpoolError

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_THERE = 4
REFUSED = 5

EXIT_CODES: dict[int, str] = {
    OK: "done",
    FAILED: "it did not work, or what was checked does not hold",
    USAGE: "a flag, a setting or a file that cannot be used",
    UNREACHABLE: "a master or a node could not be asked",
    NOT_THERE: "what was asked for is not in the pool",
    REFUSED: "understood, and not done",
}

_BRANCHES: tuple[tuple[type[MoonpoolError], int, str], ...] = (
    (
        errors.ConfigError,
        USAGE,
        "`moonpool config show KIND` lists every setting with its value and where it came from.",
    ),
    (errors.BadInput, USAGE, "`moonpool COMMAND --help` says what is allowed."),
    (errors.VersionMismatch, UNREACHABLE, "Install the same Moonpool on both sides."),
    (
        errors.DeadlineExceeded,
        UNREACHABLE,
        "It, or the way to it, is silent: look at its log, and at firewalls; `moonpool doctor` looks closer.",
    ),
    (
        errors.Unreachable,
        UNREACHABLE,
        "Is it running? `moonpool serve` starts one here, --master names another, `moonpool doctor` looks closer.",
    ),
    (
        errors.Miss,
        NOT_THERE,
        "`moonpool ls keys`, `ls nodes` or `tenant list` says what there is; what was there may have been evicted.",
    ),
    (errors.Refused, REFUSED, "`moonpool status` shows the nodes and how full they are."),
)


def exit_code_of(error: MoonpoolError) -> int:
    """Of the process that ends with this error."""
    return next((code for kind, code, _ in _BRANCHES if isinstance(error, kind)), FAILED)


def explain(error: MoonpoolError) -> int:
    """Says it on stderr. Returns the exit code."""
    print(f"error {error.code}: {error}", file=sys.stderr)
    for kind, code, advice in _BRANCHES:
        if isinstance(error, kind):
            print(advice, file=sys.stderr)
            return code
    return FAILED
