"""Trials: every subject does the same, in random order, again and again; then medians and ratios."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from moonpool.benchmarks.arena import Shape
from moonpool.benchmarks.cast import SUMS
from moonpool.benchmarks.results import Result, compare, summarise
from moonpool.benchmarks.scale import Scale
from moonpool.benchmarks.workers import Worker

MIN_SAMPLES = 4

One = TypeVar("One")
"""Whoever takes part in a trial."""


class Samples:
    """What each subject did in one case. Of several subjects of one name's family the best one counts."""

    def __init__(self, case: str, group: str, unit: str) -> None:
        self.case, self.group, self.unit = case, group, unit
        self._values: dict[str, list[float]] = {}
        self._verified: dict[str, bool] = {}

    def add(self, subject: str, values: Sequence[float], verified: bool) -> None:
        """Some measurements in the unit of the case. None: the subject has died, and the case goes on without it."""
        if not values:
            return
        self._values.setdefault(subject, []).extend(values)
        self._verified[subject] = self._verified.get(subject, True) and verified

    def results(self) -> list[Result]:
        """One a subject; Moonpool with checksums is a case of its own."""
        found: dict[str, Result] = {}
        for name, values in self._values.items():
            subject = name.split("-")[0] if name != SUMS else name
            result = summarise(self.case, self.group, subject, values, self.unit, self._verified[name])
            if subject not in found or result.better_than(found[subject]):
                found[subject] = result
        return compare(found, SUMS)


def rounds(scale: Scale, workers: Sequence[One], *, warm: bool = True) -> Iterator[tuple[int, list[One]]]:
    """(number, those who take part in random order) of each trial. Number -1 is for warming up and doesn't count."""
    rng = random.Random(0)
    workers = [one for one in workers if not getattr(one, "died", False)]
    end_s = time.monotonic() + scale.case_s
    first = -1 if warm and not scale.quick else 0
    for number in range(first, scale.samples):
        if number >= MIN_SAMPLES and time.monotonic() > end_s:
            return
        workers = [one for one in workers if not getattr(one, "died", False)]
        yield number, rng.sample(workers, len(workers))


Trial = Callable[[Worker, int], tuple[Sequence[float], bool]]


def measure(
    samples: Samples, scale: Scale, workers: Sequence[Worker], trial: Trial, *, warm: bool = True
) -> list[Result]:
    """Lets every worker do `trial` again and again; returns the case's results."""
    for number, order in rounds(scale, workers, warm=warm):
        for worker in order:
            values, verified = trial(worker, number)
            if number >= 0:
                samples.add(worker.name, values, verified)
    return samples.results()


def put_and_get(
    scale: Scale,
    workers: Sequence[Worker],
    cases: tuple[Samples, Samples],
    shape: Shape,
    row: int,
    value: Callable[[float], float],
    *,
    remove: bool = True,
) -> list[Result]:
    """Lets every worker put a row of batches of that shape and get it back, again and again; returns the results of both
    cases. `value`: a sample, of the seconds of a batch. `remove`: a trial's objects are forgotten before the next."""
    puts, gets = cases
    for number, order in rounds(scale, workers):
        here = replace(shape, place=number + 1, order=number + 1)
        prefix = f"{puts.case}-{number}-"
        # Checksums of a put are computed behind it, so gets come after everybody's puts.
        for samples, do, workers_now in ((puts, "put", order), (gets, "get", order[::-1])):
            for worker in workers_now:
                answer = worker.ask(do, prefix=prefix, shape=here, row=row)
                if number >= 0:
                    samples.add(worker.name, list(map(value, answer["samples"])), answer["verified"])
        for worker in order if remove else ():
            worker.ask("remove_row", prefix=prefix, count=here.count, row=row)
    return [*puts.results(), *gets.results()]
