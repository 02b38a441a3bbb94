"""Generated request traces: families of workloads that a policy has to hold on without being tuned on them.

agentic   coding agents: about 33 turns a session, contexts that grow to 180K tokens, 131 tokens of input to one
          of output, pauses for tools; a pool that keeps everything would hit 94 % of the blocks
prompts   one-shot users behind system prompts of Zipf popularity
chat      people who come back within minutes or never
loops     batch jobs that read the same corpus again and again, beside one-shot requests
phases    a stretch of each of the others in turn

Each trace is a function of its seed. Sessions lie interleaved, as a pool behind many engines sees them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count
from random import Random

from moonpool.benchmarks.replay.trace import Request
from moonpool.schemas.errors import InvalidParams

BLOCK_TOKENS = 512
CONTEXT_BLOCKS_MAX = 180_000 // BLOCK_TOKENS
REQUESTS = 4_000

Turn = tuple[list[int], int, float]
"""Blocks of the prompt, output tokens, and the pause until the next turn in s."""

Session = Iterator[Turn]


def generate(family: str, *, seed: int = 0, requests: int = REQUESTS) -> list[Request]:
    """A trace of that many requests. Raises InvalidParams for an unknown family."""
    if family not in FAMILIES:
        raise InvalidParams(field="family", value=family, allowed=", ".join(FAMILIES))
    return FAMILIES[family](Random(f"{family} {seed}"), requests)


class _Ids:
    """Hands out block ids."""

    def __init__(self) -> None:
        self._next = count()

    def blocks(self, number: int) -> list[int]:
        """Fresh ones."""
        return [next(self._next) for _ in range(number)]


class _Zipf:
    """Picks items, the n-th with a weight of 1 / n ** exponent."""

    def __init__(self, random: Random, items: Sequence[list[int]], exponent: float) -> None:
        self._random = random
        self._items = items
        self._weights = list(accumulate(1 / (rank + 1) ** exponent for rank in range(len(items))))

    def pick(self) -> list[int]:
        """One item."""
        return self._random.choices(self._items, cum_weights=self._weights)[0]


def _interleave(
    random: Random, requests: int, rate_hz: float, open_session: Callable[[], Session]
) -> list[Request]:
    """Sessions that arrive at random and run side by side."""
    out: list[Request] = []
    ticket = count()
    next_arrival_s = random.expovariate(rate_hz)
    due: list[tuple[float, int, Session]] = []
    while len(out) < requests:
        if not due or next_arrival_s <= due[0][0]:
            heapq.heappush(due, (next_arrival_s, next(ticket), open_session()))
            next_arrival_s += random.expovariate(rate_hz)
        now_s, _, session = heapq.heappop(due)
        turn = next(session, None)
        if turn is not None:
            blocks, output_tokens, pause_s = turn
            out.append(Request(round(now_s * 1000), len(blocks) * BLOCK_TOKENS, output_tokens, blocks))
            heapq.heappush(due, (now_s + pause_s, next(ticket), session))
    return out


def _lognormal(random: Random, median: float, spread: float, low: float, high: float) -> float:
    return min(high, max(low, median * random.lognormvariate(0, spread)))


class Agents:
    """Coding agents behind a handful of system prompts; each session is one task."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ids = _Ids()
        self._prompts = _Zipf(random, [self._ids.blocks(random.randint(12, 32)) for _ in range(6)], 1.0)

    def session(self) -> Session:
        """The turns of one task, each with the whole context."""
        random, ids = self._random, self._ids
        context = self._prompts.pick() + ids.blocks(random.randint(1, 12))
        for _ in range(1 + int(random.expovariate(1 / 36))):
            tool_s = 45.0 if random.random() < 0.05 else 4.0  # now and then a build or a person
            output_tokens = round(len(context) * BLOCK_TOKENS / 131 * random.uniform(0.5, 1.5))
            yield list(context), output_tokens, 8.0 + _lognormal(random, tool_s, 1.0, 0.2, 1200)
            context += ids.blocks(round(_lognormal(random, 5.5, 1.0, 0, 60)))
            if len(context) > CONTEXT_BLOCKS_MAX:  # the agent's summary takes the place of the oldest part
                context = context[:24] + ids.blocks(12)


def _agentic(random: Random, requests: int) -> list[Request]:
    return _interleave(random, requests, 0.07, Agents(random).session)


def _prompts(random: Random, requests: int) -> list[Request]:
    ids = _Ids()
    prompts = _Zipf(random, [ids.blocks(random.randint(2, 40)) for _ in range(1500)], 0.9)

    def session() -> Session:
        yield prompts.pick() + ids.blocks(random.randint(1, 8)), random.randint(20, 400), 0.0

    return _interleave(random, requests, 4.0, session)


def _chat(random: Random, requests: int) -> list[Request]:
    ids = _Ids()
    system = ids.blocks(1)

    def session() -> Session:
        context = system + ids.blocks(round(_lognormal(random, 9, 1.1, 1, 240)))
        stays = random.betavariate(0.5, 1.2)  # most leave at once, some stay for long
        while True:
            yield list(context), random.randint(50, 700), _lognormal(random, 120, 1.0, 5, 3600)
            if random.random() > stays:
                return
            context += ids.blocks(random.randint(0, 3))

    return _interleave(random, requests, 2.2, session)


def _loops(random: Random, requests: int) -> list[Request]:
    ids = _Ids()
    corpus = [ids.blocks(random.randint(40, 160)) for _ in range(120)]

    def one_shot() -> Session:
        yield ids.blocks(random.randint(1, 30)), random.randint(20, 400), 0.0

    def job() -> Session:
        while True:
            for document in corpus:
                yield document + ids.blocks(1), 100, random.uniform(1, 3)

    jobs = iter([job()])
    return _interleave(random, requests, 0.8, lambda: next(jobs, None) or one_shot())


def _phases(random: Random, requests: int) -> list[Request]:
    out: list[Request] = []
    ids = count()
    start_ms = 0.0
    for family in ("chat", "prompts", "loops", "agentic"):
        part = FAMILIES[family](random, requests // 4)
        names: dict[int, int] = {}
        for request in part:
            hash_ids = [
                names[old] if old in names else names.setdefault(old, next(ids)) for old in request.hash_ids
            ]
            at_ms = start_ms + request.timestamp
            out.append(Request(at_ms, request.input_length, request.output_length, hash_ids))
        start_ms = out[-1].timestamp
    return out


FAMILIES: dict[str, Callable[[Random, int], list[Request]]] = {
    "agentic": _agentic,
    "prompts": _prompts,
    "chat": _chat,
    "loops": _loops,
    "phases": _phases,
}
"""Every family's generator."""
