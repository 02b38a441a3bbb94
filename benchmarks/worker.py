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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from moonpool.benchmarks.arena import Arena, Shape
from moonpool.benchmarks.subjects.base import Pieces, Subject

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

    def put(self, prefix: str, shape: dict[str, int], row: int = 1) -> dict[str, Any]:
        """Seconds that each of `row` batches took, one right behind the other, and whether all of them were stored."""
        batches = Shape(**shape).row(row)
        calls = [
            (names(f"{prefix}{index}-", batch.count), self._arena.pieces(batch, back=False))
            for index, batch in enumerate(batches)
        ]
        samples, stored = timed(self._subject.put, calls)
        return {"samples": samples, "verified": stored == sum(batch.count for batch in batches)}

    def get(self, prefix: str, shape: dict[str, int], row: int = 1) -> dict[str, Any]:
        """Seconds that each of `row` batches took, one right behind the other, and whether every byte came."""
        batches = Shape(**shape).row(row)
        calls = []
        for index, batch in enumerate(batches):
            calls.append((names(f"{prefix}{index}-", batch.count), self._arena.pieces(batch, back=True)))
            self._arena.wipe(batch)
        samples, got = timed(self._subject.get, calls)
        verified = got == sum(batch.count for batch in batches) and all(map(self._arena.came_back, batches))
        return {"samples": samples, "verified": verified}

    def puts_and_gets(
        self, prefix: str, size: int, calls: int, seconds: float = float("inf")
    ) -> dict[str, Any]:
        """Seconds of each put of one object, and of its get right behind it: so many of both, or for so long. Where the put
        fails there is no get."""
        puts, gets, verified = [], [], True
        end_s = time.perf_counter() + seconds
        for index in range(calls):
            what = {"count": 1, "size": size, "place": index}
            put = self.put(f"{prefix}{index}-", what)
            puts += put["samples"]
            if put["verified"]:
                get = self.get(f"{prefix}{index}-", what)
                gets += get["samples"]
                verified = verified and get["verified"]
            if time.perf_counter() > end_s:
                break
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
        stored = got = rounds = 0
        start_s = time.perf_counter()
        while time.perf_counter() - start_s < seconds:
            shape = Shape(batch, size, place=rounds)
            keys = names(f"{prefix}{rounds}-", batch)
            stored += self._subject.put(keys, self._arena.pieces(shape, back=False))
            got += self._subject.get(keys, self._arena.pieces(shape, back=True))
            self._subject.remove(keys)
            rounds += 1
        return {"stored": stored, "seconds": time.perf_counter() - start_s, "verified": got == stored}

    def remove(self, prefix: str, count: int) -> dict[str, Any]:
        """Forgets objects."""
        self._subject.remove(names(prefix, count))
        return {}

    def remove_row(self, prefix: str, count: int, row: int) -> dict[str, Any]:
        """Forgets the batches of a row."""
        for index in range(row):
            self.remove(f"{prefix}{index}-", count)
        return {}

    def close(self) -> None:
        """Leaves."""
        self._subject.close()


def names(prefix: str, count: int) -> list[str]:
    """The keys of a batch."""
    return [f"{prefix}{index}" for index in range(count)]


def timed(
    do: Callable[[Sequence[str], Pieces], int], calls: Sequence[tuple[Sequence[str], Pieces]]
) -> tuple[list[float], int]:
    """Seconds of each call, one right behind the other, and how many objects all of them dealt with."""
    samples, done = [], 0
    for keys, pieces in calls:
        start_s = time.perf_counter()
        done += do(keys, pieces)
        samples.append(time.perf_counter() - start_s)
    return samples, done


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
