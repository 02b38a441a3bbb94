"""Which faults there are, and a plan of them that follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

RECOVERY_S = 2.5
"""Before the same part is struck again. Others are struck meanwhile."""

PAUSE_MAX_S = 1.4
"""Between two strikes."""

CLOCK_STEPS_S = (-90_000.0, -3600.0, -5.0, 5.0, 3600.0, 90_000.0)


class Kind(StrEnum):
    """What happens to a part."""

    KILL = "kill -9"
    FREEZE = "SIGSTOP"
    ISOLATE = "isolated"
    CUT = "link cut"
    CUT_ONE_WAY = "link cut one way"
    STEP_CLOCK = "clock step"
    DELAY = "delayed"
    DUPLICATE = "requests sent twice"
    LOSE_ANSWERS = "answers lost"


LENGTHS_S = {
    Kind.KILL: (0.1, 2.0),
    Kind.FREEZE: (0.5, 6.0),  # a master's lease is 3 s
    Kind.ISOLATE: (0.5, 6.0),
    Kind.CUT: (0.5, 6.0),
    Kind.CUT_ONE_WAY: (0.5, 6.0),
    Kind.STEP_CLOCK: (0.0, 0.0),
    Kind.DELAY: (0.5, 6.0),
    Kind.DUPLICATE: (0.5, 6.0),
    Kind.LOSE_ANSWERS: (0.5, 6.0),
}
"""Shortest and longest."""

LINKS = (Kind.CUT, Kind.CUT_ONE_WAY)

WIRES = {
    Kind.DELAY: {"delay_s": 0.3},
    Kind.DUPLICATE: {"duplicate": 0.5, "delay_s": 0.02},
    Kind.LOSE_ANSWERS: {"lose": 0.1},
}
"""What a bad wire (wire.py) does: before masters, and before etcd's members, whose bytes it can only delay."""

STRUCK = {Kind.STEP_CLOCK: "m", Kind.DELAY: "me", Kind.DUPLICATE: "m", Kind.LOSE_ANSWERS: "m"}
"""Sorts of parts, where not all."""


@dataclass(frozen=True)
class Fault:
    """`other`: the far end of a link. `step_s`: of a clock."""

    at_s: float
    kind: Kind
    part: str
    for_s: float
    other: str = ""
    step_s: float = 0.0

    @property
    def end_s(self) -> float:
        """When it is taken back."""
        return self.at_s + self.for_s

    def __str__(self) -> str:
        where = f"{self.part}-{self.other}" if self.other else self.part
        return f"{self.at_s:.1f} s: {self.kind} {where}, {self.for_s:.1f} s"


def plan(seed: int, length_s: float, parts: Sequence[str], kinds: Sequence[Kind]) -> list[Fault]:
    """Faults that begin within so many seconds, in order. Each (kind, sort of part) comes before any comes again; a
    sort is the first letter of the part's name."""
    dice = random.Random(seed)
    faults: list[Fault] = []
    free_s = dict.fromkeys(parts, 0.0)
    waiting: list[tuple[Kind, str]] = []
    at_s = 0.0
    while True:
        at_s += dice.uniform(0.1, PAUSE_MAX_S)
        if at_s >= length_s:
            return faults
        idle = [part for part in parts if free_s[part] <= at_s]
        if not any(sort in {part[0] for part in idle} for _, sort in waiting):
            waiting += _each_once(dice, parts, kinds)
        chosen = next((one for one in waiting if one[1] in {part[0] for part in idle}), None)
        if chosen is None or (chosen[0] in LINKS and len(idle) < 2):
            continue
        waiting.remove(chosen)
        part = dice.choice([part for part in idle if part[0] == chosen[1]])
        others = [one for one in idle if one != part]
        fault = _fault(dice, at_s, chosen[0], part, others)
        faults.append(fault)
        for name in filter(None, (fault.part, fault.other)):
            free_s[name] = fault.end_s + RECOVERY_S


def _each_once(dice: random.Random, parts: Sequence[str], kinds: Sequence[Kind]) -> list[tuple[Kind, str]]:
    """Every (kind, sort of part), shuffled."""
    every = [(kind, sort) for kind in kinds for sort in sorted({part[0] for part in parts})]
    every = [(kind, sort) for kind, sort in every if sort in STRUCK.get(kind, sort)]
    dice.shuffle(every)
    return every


def _fault(dice: random.Random, at_s: float, kind: Kind, part: str, others: Sequence[str]) -> Fault:
    other = dice.choice(others) if kind in LINKS else ""
    step_s = dice.choice(CLOCK_STEPS_S) if kind is Kind.STEP_CLOCK else 0.0
    return Fault(at_s, kind, part, dice.uniform(*LENGTHS_S[kind]), other, step_s)
