"""The life of one shard at one master (no I/O, no clock).

             taken                  loaded
    absent ─────────► loading ─────────────────► serving
      ▲ ▲                │                          │
      │ │                └───────► draining ◄───────┘   leaving, or somebody else's turn
      │ └── released ──────────────────┘
      │
      └── lease lost ── fenced ◄── any of them, while the lease isn't renewed in time; renewed: back

| state | answers readers | takes puts and changes | gives up victims | takes reports |
| --- | --- | --- | --- | --- |
| loading | yes: nothing is there | no | no | no: it can't know what was removed |
| serving | yes | yes | yes | yes |
| draining | no: its next owner may have begun | no | no | no |
| fenced | no | no | no | no |
"""

from __future__ import annotations

from enum import StrEnum

from moonpool.schemas.errors import InternalError


class ShardState(StrEnum):
    """See above."""

    ABSENT = "absent"
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    FENCED = "fenced"


class Event(StrEnum):
    """What happens to a shard."""

    TAKEN = "taken"
    LOADED = "loaded"
    LEAVING = "leaving"
    RELEASED = "released"
    LEASE_LATE = "lease late"
    LEASE_RENEWED = "lease renewed"
    LEASE_LOST = "lease lost"


_NEXT: dict[tuple[ShardState, Event], ShardState] = {
    (ShardState.ABSENT, Event.TAKEN): ShardState.LOADING,
    (ShardState.LOADING, Event.LOADED): ShardState.SERVING,
    (ShardState.LOADING, Event.LEAVING): ShardState.DRAINING,
    (ShardState.SERVING, Event.LEAVING): ShardState.DRAINING,
    (ShardState.DRAINING, Event.RELEASED): ShardState.ABSENT,
}
"""Transitions but for those of the lease, which all held states have."""


class ShardLife:
    """One shard's state, and the epoch in which it is held (0: it never was). `answers`: whether readers are served;
    `changes`: whether puts, removals, pins, evictions and report streams are."""

    def __init__(self) -> None:
        self.epoch = 0
        self.taken_in = 0
        """The epoch in which it was taken: that of a master that is alone grows."""
        self.answers = self.changes = False
        self._state = ShardState.ABSENT
        self._late = False

    @property
    def state(self) -> ShardState:
        """As others see it."""
        return ShardState.FENCED if self._late and self._state is not ShardState.ABSENT else self._state

    @property
    def leaving(self) -> bool:
        """Whether it drains, fenced or not."""
        return self._state is ShardState.DRAINING

    def happens(self, event: Event, epoch: int = 0) -> ShardState:
        """The state after that. `epoch`: with TAKEN, and greater than any before. Raises InternalError where it can't
        happen now."""
        if event in (Event.LEASE_LATE, Event.LEASE_RENEWED):
            self._late = event is Event.LEASE_LATE
        elif event is Event.LEASE_LOST:
            self._state, self._late = ShardState.ABSENT, False
        else:
            after = _NEXT.get((self._state, event))
            if after is None or (event is Event.TAKEN and epoch <= self.epoch):
                raise InternalError(detail=f"a shard that is {self._state} can't be {event} in epoch {epoch}")
            self._state = after
            if event is Event.TAKEN:
                self.epoch = self.taken_in = epoch
        self.answers = self.state in (ShardState.LOADING, ShardState.SERVING)
        self.changes = self.state is ShardState.SERVING
        return self.state

    def validate(self) -> None:
        """Asserts what each state allows."""
        assert not self.changes or self.answers, "changes where not even readers are answered"
        assert not self.answers or self.epoch > 0, "answers in no epoch"


TRANSITIONS = sorted((before.value, event.value, after.value) for (before, event), after in _NEXT.items())
"""For the diagram in ARCHITECTURE.md, which a test compares."""
