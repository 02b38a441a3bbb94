"""One subject in a process of its own: `python -m moonpool.benchmarks.worker KIND OPTIONS ARENA HALF_BYTES`.

A command is a line of JSON on stdin, its answer one on stdout. Everything is prepared and checked outside the time
that is measured.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moonpool.benchmarks.arena import Arena, Shape
from moonpool.benchmarks.subjects.base import Subject

RECOVER_PAUSE_S = 0.01

KINDS = {
    "moonpool": "moonpool:MoonpoolSubject",
    "mooncake": "mooncake:MooncakeSubject",
    "redis": "redis:RedisSubject",
    "memcpy": "limit:MemcpyLimit",
    "socket": "limit:SocketLimit",
}


class Commands:
    """What the parent may ask for: each method is a command, its result the answer."""

    def __init__(self, subject: Subject, arena: Arena) -> None:
        self._subject = subject
        self._arena = arena
        subject.register(arena.address, arena.total_bytes)

    def put(self, prefix: str, shape: dict[str, int]) -> dict[str, Any]:
        """Seconds that one batch took, and whether all of it was stored."""
        what = Shape(**shape)
        keys, pieces = names(prefix, what.count), self._arena.pieces(what, back=False)
        start_s = time.perf_counter()
        stored = self._subject.put(keys, pieces)
        return {"seconds": time.perf_counter() - start_s, "verified": stored == what.count}

    def get(self, prefix: str, shape: dict[str, int]) -> dict[str, Any]:
        """Seconds that one batch took, and whether every byte came."""
        what = Shape(**shape)
        keys, pieces = names(prefix, what.count), self._arena.pieces(what, back=True)
        self._arena.wipe(what)
        start_s = time.perf_counter()
        got = self._subject.get(keys, pieces)
        seconds = time.perf_counter() - start_s
        return {"seconds": seconds, "verified": got == what.count and self._arena.came_back(what)}

    def singles(self, name: str, prefix: str, size: int, calls: int) -> dict[str, Any]:
        """Seconds of each of `calls` puts or gets of one object."""
        samples, verified = [], True
        for index in range(calls):
            answer = getattr(self, name)(f"{prefix}{index}-", {"count": 1, "size": size, "place": index})
            samples.append(answer["seconds"])
            verified = verified and answer["verified"]
        return {"samples": samples, "verified": verified}

    def puts_and_gets(self, prefix: str, size: int, calls: int) -> dict[str, Any]:
        """Seconds of each put of one object, and of its get right behind it. Where the put fails there is no get."""
        puts, gets, verified = [], [], True
        for index in range(calls):
            what = {"count": 1, "size": size, "place": index}
            put = self.put(f"{prefix}{index}-", what)
            puts.append(put["seconds"])
            if put["verified"]:
                get = self.get(f"{prefix}{index}-", what)
                gets.append(get["seconds"])
                verified = verified and get["verified"]
        return {"puts": puts, "gets": gets, "verified": verified}

    def fill(self, prefix: str, count: int, size: int, batch: int) -> dict[str, Any]:
        """Stores many small objects."""
        stored = 0
        for first in range(0, count, batch):
            shape = Shape(min(batch, count - first), size, place=first)
            keys = names(prefix, first + shape.count)[first:]
            stored += self._subject.put(keys, self._arena.pieces(shape, back=False))
        return {"verified": stored == count}

    def exist(self, prefix: str, first: int, count: int, calls: int, expected: int) -> dict[str, Any]:
        """Seconds of each of `calls` questions after `count` keys."""
        keys = [f"{prefix}{index}" for index in range(first, first + count)]
        samples, verified = [], True
        for _ in range(calls):
            start_s = time.perf_counter()
            found = self._subject.exist(keys)
            samples.append(time.perf_counter() - start_s)
            verified = verified and found == expected
        return {"samples": samples, "verified": verified}

    def recover(self, prefix: str, count: int, seconds: float) -> dict[str, Any]:
        """After a master was killed and started again: seconds until a put goes through, how many of the `count`
        objects from before are found, and seconds until all of them are (as far as that was seen)."""
        start_s = time.perf_counter()
        puts_s = None
        keys, found, last_s = names(prefix, count), 0, 0.0
        for attempt in itertools.count():
            spent_s = time.perf_counter() - start_s
            if (puts_s is not None and found == count) or spent_s > seconds:
                break
            with contextlib.suppress(Exception):  # what an absent master means to each of them
                if (
                    puts_s is None
                    and self.put(f"{prefix}again-{attempt}-", {"count": 1, "size": 64})["verified"]
                ):
                    puts_s = time.perf_counter() - start_s
                now_found = self._subject.exist(keys)
                if now_found > found:
                    found, last_s = now_found, time.perf_counter() - start_s
            time.sleep(RECOVER_PAUSE_S)
        return {"puts_s": puts_s or seconds, "found": found, "found_s": last_s}

    def churn(self, prefix: str, size: int, batch: int, seconds: float) -> dict[str, Any]:
        """Puts that never stop, into a pool that is full: how many went through, and how many didn't."""
        stored = failed = rounds = 0
        start_s = time.perf_counter()
        while time.perf_counter() - start_s < seconds:
            shape = Shape(batch, size, place=rounds)
            keys = [f"{prefix}{rounds}-{index}" for index in range(batch)]
            done = self._subject.put(keys, self._arena.pieces(shape, back=False))
            stored, failed, rounds = stored + done, failed + batch - done, rounds + 1
        spent_s = time.perf_counter() - start_s
        # What went in last must be there, as it was put.
        last = self._arena.pieces(shape, back=True)
        self._arena.wipe(shape)
        got = self._subject.get(keys, last)
        verified = got == done and (done < batch or self._arena.came_back(shape))
        return {"stored": stored, "failed": failed, "seconds": spent_s, "verified": verified}

    def put_and_remove(self, prefix: str, size: int, batch: int, seconds: float) -> dict[str, Any]:
        """Batches that come and go without a pause, in a pool that isn't full."""
        rounds = 0
        start_s = time.perf_counter()
        while time.perf_counter() - start_s < seconds:
            shape = Shape(batch, size, place=rounds)
            keys = names(f"{prefix}{rounds}-", batch)
            self._subject.put(keys, self._arena.pieces(shape, back=False))
            self._subject.get(keys, self._arena.pieces(shape, back=True))
            self._subject.remove(keys)
            rounds += 1
        return {"rounds": rounds}

    def remove(self, prefix: str, count: int) -> dict[str, Any]:
        """Forgets a batch."""
        self._subject.remove(names(prefix, count))
        return {}

    def close(self) -> None:
        """Leaves."""
        self._subject.close()


def names(prefix: str, count: int) -> list[str]:
    """The keys of a batch."""
    return [f"{prefix}{index}" for index in range(count)]


def load(kind: str) -> Callable[..., Subject]:
    """The class of a kind of subject."""
    module, name = KINDS[kind].split(":")
    found: Callable[..., Subject] = getattr(
        importlib.import_module(f"moonpool.benchmarks.subjects.{module}"), name
    )
    return found


def serve(make: Callable[..., Any]) -> None:
    """Answers commands with the methods of what `make` returns, until stdin ends."""
    kind, options, *others = sys.argv[1:]
    # Answers go to the stdout of the start; what a library prints there later goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    commands = make(kind, json.loads(options), *others)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(commands, command.pop("do"))(**command)
        print(json.dumps(answer), file=answers, flush=True)
    commands.close()


if __name__ == "__main__":
    serve(
        lambda kind, options, path, half_bytes: Commands(
            load(kind)(**options), Arena(Path(path), int(half_bytes))
        )
    )
