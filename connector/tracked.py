"""What the scheduler half keeps of a request while the engine holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moonpool.connector.lookups import Ready
from moonpool.schemas.keyspace import KeyspaceSpec

BlockTable = Sequence[list[int]]
"""Block ids of a request, a list for each of vLLM's groups."""


SESSION_CHARACTERS_MAX = 256


class EngineRequest(Protocol):
    """The part of vLLM's Request that is read here. It changes under our hands, in the scheduler's thread only."""

    request_id: str
    num_computed_tokens: int
    block_hashes: list[bytes]

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        ...


@dataclass(slots=True)
class Match:
    """A question to the pool and its answer."""

    ticket: int
    asked_s: float
    hash_count: int
    answered_s: float | None = None
    ready: Ready = ()
    gave_up: bool = False


@dataclass(slots=True)
class Tracked:
    """One request. Counts are blocks of each group that the pool serves.

    `adapter`: None for the base model. `keyspaces`: None until they are known. `offered`: (local tokens,
    tokens beyond them) of the last offer to the engine. `used_tokens`: the prefix that came from the pool.
    `session_id`: what it says it belongs to. `saved`: blocks of each group that a save job has had. `sent_hashes`: how many the workers know.
    """

    request: EngineRequest
    adapter: object | None
    saved: list[int]
    keyspaces: tuple[KeyspaceSpec, ...] | None = None
    digests: tuple[bytes, ...] = ()
    match: Match | None = None
    offered: tuple[int, int] = (0, 0)
    used_tokens: int = 0
    load_failures: int = 0
    save_retries: int = 0
    sent_hashes: int = 0
    outdated: bool = False
    session_id: str = ""

    @property
    def request_id(self) -> str:
        """The engine's name for it."""
        return self.request.request_id

    def name(self, specs: tuple[KeyspaceSpec, ...]) -> None:
        """Its keyspaces are known."""
        self.keyspaces = specs
        self.digests = tuple(spec.digest() for spec in specs)


def session_of(request: EngineRequest) -> str:
    """What a request says it belongs to: kv_transfer_params["session_id"], or its own session_id where vLLM knows of
    such. "" where it says nothing, or nothing that is a name."""
    params = getattr(request, "kv_transfer_params", None)
    named = params.get("session_id") if isinstance(params, dict) else None
    session = named if named is not None else getattr(request, "session_id", None)
    return session[:SESSION_CHARACTERS_MAX] if isinstance(session, str) else ""


@dataclass(slots=True)
class Roles:
    """What this engine does with the pool."""

    loads: bool
    saves: bool

    @staticmethod
    def of(kv_role: str, *, lookup: bool, save_decode_cache: bool) -> Roles:
        """From vLLM's kv_role. A consumer that saves what it decodes saves the chain that leads there too:
        without its parents a block could never be found."""
        return Roles(loads=lookup, saves=kv_role != "kv_consumer" or save_decode_cache)


@dataclass(slots=True)
class StepView:
    """What the engine does in this step: tokens of each scheduled request, and where to find a block table
    (None for a request that isn't scheduled)."""

    scheduled: dict[str, int]
    table: Callable[[str], BlockTable | None]
