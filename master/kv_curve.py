"""Who may read KV events: ZMQ's CURVE, with the public keys of a file.

The secret key's file holds its 40 characters. The file of public keys has one a line, with a name behind it if one likes; lines that
begin with "# " say nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import ConfigError
from moonpool.store_client.rpc.secret_files import LOOK_EVERY_S, read_private, state_of

log = logging.getLogger(__name__)

KEY_CHARACTERS = 40
CLIENTS_BYTES_MAX = 1 << 20
COMMENT = "# "
REFUSED_MAX = 256


class CurveGuard:
    """Of one publisher. `start` comes before its sockets are bound, `close` after they are closed."""

    def __init__(self, key_path: str, clients_path: str) -> None:
        """Raises ConfigError where a file can't be used."""
        self._secret = read_secret_key(Path(key_path))
        self._clients = Clients(Path(clients_path))
        self._authenticator: Any = None

    @classmethod
    def of(cls, settings: MasterSettings) -> CurveGuard | None:
        """None where the settings want none. Raises ConfigError."""
        return cls(settings.events_key, settings.events_clients) if settings.events_key else None

    def start(self, context: Any) -> None:
        """A thread that answers who may come in, in this ZMQ context."""
        import zmq.auth.thread

        self._authenticator = zmq.auth.thread.ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", self._clients)

    def secure(self, sock: Any) -> None:
        """Has a socket that isn't bound yet ask for CURVE."""
        sock.curve_server = True
        sock.curve_secretkey = self._secret

    def close(self) -> None:
        """Ends the thread."""
        if self._authenticator is not None:
            self._authenticator.stop()


class Clients:
    """Public keys that are let in. A changed file that can't be used leaves the keys before it in force, with one log
    line. Connections that are there stay."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self._path = path
        self._lock = threading.Lock()
        self._state = state_of(path)
        self._keys = read_public_keys(path)
        self._looked_s = time.monotonic()
        self._refused: set[bytes] = set()
        """Of whom the log has told: they try again and again."""

    def callback(self, domain: str, key: bytes) -> bool:
        """What pyzmq's authenticator asks. `key`: its 40 characters."""
        with self._lock:
            if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = time.monotonic()
                self._look()
            allowed = key in self._keys
            told = allowed or key in self._refused or len(self._refused) >= REFUSED_MAX
            if not told:
                self._refused.add(key)
        if not told:
            log.info("KV events: a reader whose key %s is not in %s was not let in", key.decode(), self._path)
        return allowed

    def _look(self) -> None:
        state = state_of(self._path)
        if state == self._state:
            return
        self._state = state
        try:
            self._keys = read_public_keys(self._path)
        except ConfigError as error:
            log.error("the keys before stay in force: %s", error)


def read_secret_key(path: Path) -> bytes:
    """Raises ConfigError."""
    key = read_private(path, 2 * KEY_CHARACTERS).strip()
    if not _is_key(key.decode(errors="replace")):
        raise _bad(path, "file", "does not hold a secret CURVE key; make one with `moonpool events-key`")
    return key


def read_public_keys(path: Path) -> frozenset[bytes]:
    """Raises ConfigError."""
    try:
        with path.open() as stream:
            lines = stream.read(CLIENTS_BYTES_MAX).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, "file", f"can't be read: {error}") from None
    keys = set()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith(COMMENT):
            continue
        if not _is_key(words[0]):
            raise _bad(
                path, f"line {number}", f"does not begin with a public key of {KEY_CHARACTERS} characters"
            )
        keys.add(words[0].encode())
    return frozenset(keys)


def _is_key(text: str) -> bool:
    import zmq.utils.z85

    try:
        return len(text) == KEY_CHARACTERS and len(zmq.utils.z85.decode(text)) == 32
    except (ValueError, KeyError):
        return False


def _bad(path: Path, field: str, problem: str) -> ConfigError:
    return ConfigError(source=str(path), field=field, problem=problem)
