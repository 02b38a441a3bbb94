"""What the REST interface sees of a master."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moonpool.master.core import MasterCore
from moonpool.master.handler import MasterHandler
from moonpool.master.store.timed import TimedStore
from moonpool.schemas.clock import Clock
from moonpool.schemas.config import MasterSettings
from moonpool.store_client.rpc.timings import CallTimings


@dataclass(frozen=True, slots=True)
class MasterParts:
    """Parts of a running master. All but `settings` are to be touched in the master's event loop only: by functions
    that a Gateway runs. `hard_facts`: of hard state and the entry log. `origins`: where each setting came from."""

    core: MasterCore
    handler: MasterHandler
    timings: CallTimings
    clock: Clock
    settings: MasterSettings
    store: TimedStore
    hard_facts: Callable[[], Mapping[str, int | float]]
    origins: Mapping[str, str] = field(default_factory=dict)
    started_s: float = field(default_factory=time.time)
