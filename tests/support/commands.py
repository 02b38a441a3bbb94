"""The `moonpool` command in this process: what a person would see."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

from moonpool.store_client.cli.main import main


class Said(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which is one line of JSON."""
        return json.loads(self.out)


def moonpool(*words: str) -> Said:
    """Runs `moonpool WORDS`, away from any terminal and from what a test runner says of its width."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    without_width = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with (
        patch("sys.argv", ["moonpool", *words]),
        patch.dict(os.environ, without_width, clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
    return Said(code, out.getvalue(), err.getvalue())
