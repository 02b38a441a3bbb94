"""The transfer engine of this process: the seam to `mooncake.engine`.

Engine         what we need of it
open_engine    the real one; one a process, because each has a port and threads of its own
fake.py        the fake
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Protocol

from moonpool.schemas.errors import MoonpoolError, TransferFailed
from moonpool.schemas.packed import U64
from moonpool.store_client.transports.engine.address import EngineAddress
from moonpool.store_client.transports.engine.knock import Awake

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5
"""Of one transfer, unless MC_TRANSFER_TIMEOUT says otherwise: the least that the engine accepts."""

PACKAGE = "mooncake-transfer-engine"
DEVICES_FOLDER = "/sys/class/infiniband"


class Outcome(Enum):
    """Of a read."""

    LANDED = "every byte is there"
    NOT_BEGUN = "the peer can't be reached: nothing will ever land"
    UNCERTAIN = "it failed, or the wait for it ended: some bytes may land at any time after"


class Engine(Protocol):
    """Reads memory of other processes. Thread-safe; the calls release the interpreter lock."""

    address: EngineAddress
    """By which others read memory that was registered here."""

    def read(self, session: str, into: U64, source: U64, sizes: U64) -> Outcome:
        """Pieces at `source` in the peer's memory to pieces at `into` in ours. Takes some seconds at most, and a core
        while it waits."""
        ...

    def register(self, address: int, size_bytes: int) -> None:
        """Opens a range of our memory to peers (to write, too: an engine has no other door). Raises TransferFailed."""
        ...

    def unregister(self, address: int) -> None:
        """The reverse."""
        ...


class _MooncakeEngine:
    """See Engine."""

    def __init__(self, engine: Any, address: EngineAddress) -> None:
        self.address = address
        self.pid = os.getpid()
        self._engine = engine
        self._awake = Awake()

    def read(self, session: str, into: U64, source: U64, sizes: U64) -> Outcome:
        """See Engine."""
        if not self._awake.may_be_called(session):
            return Outcome.NOT_BEGUN
        code = self._engine.batch_transfer_sync_read(session, into.tolist(), source.tolist(), sizes.tolist())
        self._awake.called(session, code == 0)
        return Outcome.LANDED if code == 0 else Outcome.UNCERTAIN

    def register(self, address: int, size_bytes: int) -> None:
        """See Engine. By the batch call: the other one holds the interpreter lock while it pins memory."""
        code = self._engine.batch_register_memory([address], [size_bytes])
        if code:
            reason = f"cannot register {size_bytes} bytes (code {code}); its own line on stderr says why"
            raise TransferFailed(peer="the transfer engine", reason=reason)

    def unregister(self, address: int) -> None:
        """See Engine."""
        self._engine.batch_unregister_memory([address])


_lock = threading.Lock()
_opened: _MooncakeEngine | None = None


def open_engine(protocol: str, host: str, devices: str) -> Engine:
    """This process's engine, made at the first call: later ones get the same, whatever host and devices they name.
    Raises TransferFailed: the package or a library that it needs is missing, no device, another protocol."""
    global _opened
    with _lock:
        if _opened is None or _opened.pid != os.getpid():  # a forked child has none of its parent's threads
            _opened = _make(protocol, host, devices)
        if _opened.address.protocol != protocol:
            reason = f"it speaks {_opened.address.protocol}, not {protocol}: a process has one engine"
            raise TransferFailed(peer="the transfer engine", reason=reason)
        return _opened


def _make(protocol: str, host: str, devices: str) -> _MooncakeEngine:
    # Read by the library when it is loaded or initialised. What the environment says already wins.
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    os.environ.setdefault("MC_TRANSFER_TIMEOUT", str(CALL_TIMEOUT_S))
    os.environ.setdefault("MC_TCP_STATUS_TIMEOUT_SEC", str(CALL_TIMEOUT_S))
    if protocol == "tcp":  # otherwise it takes the best device that it finds, whatever it is told
        os.environ.setdefault("MC_FORCE_TCP", "1")
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        reason = f"cannot be loaded ({error}); pip install moonpool[rdma] and its system libraries"
        raise TransferFailed(peer=PACKAGE, reason=reason) from error
    if protocol == "rdma":
        _check_devices(devices)
    with _stderr_kept() as last_line:
        engine = TransferEngine()
        code = engine.initialize(host, "P2PHANDSHAKE", protocol, devices)
        if code:
            reason = f"cannot start with protocol {protocol!r}, devices {devices!r} ({code}): {last_line()}"
            raise TransferFailed(peer="the transfer engine", reason=reason)
    address = EngineAddress(protocol, f"{host}:{engine.get_rpc_port()}")
    log.info("transfer engine at %s", address)
    return _MooncakeEngine(engine, address)


def _check_devices(devices: str) -> None:
    """The engine itself would go on with tcp, and say nothing. Raises TransferFailed."""
    try:
        there = sorted(os.listdir(DEVICES_FOLDER))
    except FileNotFoundError:
        there = []
    missing = [name for name in devices.split(",") if name and name not in there]
    if missing or not there:
        reason = f"no RDMA device {','.join(missing)}: {DEVICES_FOLDER} has {','.join(there) or 'none'}"
        raise TransferFailed(peer="the transfer engine", reason=reason)


@contextmanager
def _stderr_kept() -> Iterator[Callable[[], str]]:
    """Takes what the library writes to descriptor 2; the function returned gives its last line. For a moment it is all
    threads' descriptor 2, so this is for the one call that is never quiet. One at a time."""
    with tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)

        def last_line() -> str:
            text = os.pread(kept.fileno(), 64 << 10, max(0, os.fstat(kept.fileno()).st_size - (64 << 10)))
            lines = text.decode(errors="replace").split("\n")
            return next((line for line in reversed(lines) if line.strip()), "no reason given")[:500]

        try:
            yield last_line
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def try_engine(protocol: str, host: str, devices: str, what: str) -> Engine | None:
    """As open_engine; None, and one clear line in the log, where it can't be had: `what` goes on without."""
    try:
        return open_engine(protocol, host, devices)
    except MoonpoolError as error:
        log.warning("transport mooncake is off, %s: %s", what, error)
        return None
