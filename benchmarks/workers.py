"""The parent's side of worker.py: one process a subject, asked one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from moonpool.benchmarks.arena import Arena, Shape
from moonpool.schemas.errors import RpcFailed
from moonpool.store_client.children import start_child, stop_child

BATCH_TIMEOUT_S = 20.0
"""Mooncake without pooled connections opens one a fragment, until 13,000 closed ones leave the kernel hardly a port to give
out: minutes were seen for a batch."""

CALL_TIMEOUT_S = 120.0
FILL_TIMEOUT_S = 900.0
"""Of what is done once before a group begins."""

_TIMEOUTS_S = {"put": BATCH_TIMEOUT_S, "get": BATCH_TIMEOUT_S, "fill": FILL_TIMEOUT_S}

DIED: dict[str, Any] = {"samples": [], "puts": [], "gets": [], "verified": False}
"""What a process that has died, or was given up, answers: its cases lack it from then on."""


class Worker:
    """A subject in a process of its own, between `with` and its end. `name`: as results call it."""

    def __init__(
        self,
        name: str,
        kind: str,
        options: Mapping[str, object],
        arena: Arena | None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Without an arena: a client of the lookups."""
        self.name = name
        self.died = False
        self._doing = ""
        module = "lookup_worker" if arena is None else "worker"
        places = [] if arena is None else [str(arena.path), str(arena.half_bytes)]
        arguments = [f"moonpool.benchmarks.{module}", kind, json.dumps(dict(options)), *places]
        self._command = [sys.executable, "-m", *arguments]
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        self._process = start_child(
            self._command,
            environment=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # of what one that has died was still told
                pipe.close()
        stop_child(self._process, grace_s=5.0)
        self._log.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, do: str, **arguments: object) -> None:
        """Begins a command; `receive` waits for its answer."""
        assert self._process.stdin is not None
        self._doing = do
        for name, value in arguments.items():
            if isinstance(value, Shape):
                arguments[name] = asdict(value)
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `receive` tells what it said

    def receive(self) -> dict[str, Any]:
        """The answer to the last command. Another store's process that dies is a result, not an end: see DIED. Raises RpcFailed
        where it is ours."""
        if self.died:
            return DIED
        try:
            return self._answer(_TIMEOUTS_S.get(self._doing, CALL_TIMEOUT_S))
        except RpcFailed as error:
            if self.name.startswith("moonpool"):
                raise
            self.died = True
            print(f"{self.name} has died in {self._doing}: {error}", file=sys.stderr, flush=True)
            return DIED

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """A command and its answer, as `receive` has it."""
        self.send(do, **arguments)
        return self.receive()

    def _answer(self, timeout_s: float = FILL_TIMEOUT_S) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            stop_child(self._process, grace_s=1.0)
            raise RpcFailed(peer=f"the benchmark of {self.name}", reason=f"no answer within {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            said = os.pread(self._log.fileno(), 1 << 16, 0).decode(errors="replace")
            raise RpcFailed(peer=f"the benchmark of {self.name}", reason=f"ended:\n{said[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
