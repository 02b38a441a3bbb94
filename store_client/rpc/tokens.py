"""The tokens file of a server: read, watched for rotation, refused where others could read it."""

from __future__ import annotations

import json
import logging
import threading
import time
import tomllib
from pathlib import Path

from moonpool.schemas.access import Identity, Tokens, token_digest
from moonpool.schemas.errors import ConfigError
from moonpool.store_client.rpc.secret_files import LOOK_EVERY_S, read_private, state_of

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 1 << 20


class TokenFile:
    """An Authenticator. Thread-safe. `version` rises with every change that was taken over.

    A changed file that can't be taken over leaves the tokens before it in force, with one log line.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigError where the file can't be used."""
        self._path = Path(path)
        self._lock = threading.Lock()
        self._state = state_of(self._path)
        self._tokens = _read(self._path)
        self._looked_s = time.monotonic()
        self.version = 1

    def authenticate(self, token: str) -> Identity | None:
        """See Authenticator."""
        return self.find(token_digest(token))

    def find(self, digest: bytes) -> Identity | None:
        """Whom the token of that digest stands for now."""
        self.refresh()
        return self._tokens.find(digest)

    def refresh(self) -> int:
        """Takes a changed file over, LOOK_EVERY_S at the soonest. Returns `version`."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S and self._lock.acquire(blocking=False):
            try:
                self._looked_s = now_s
                self._look()
            finally:
                self._lock.release()
        return self.version

    def looks_next_s(self) -> float:
        """Before that time (monotonic) nothing changes."""
        with self._lock:
            return self._looked_s + LOOK_EVERY_S

    def _look(self) -> None:
        try:
            state = state_of(self._path)
            if state == self._state:
                return
            self._state = state
            self._tokens = _read(self._path)
        except ConfigError as error:
            # Once a change: `_state` already has the bad file's.
            log.error("the tokens before stay in force: %s", error)
            return
        self.version += 1
        log.info("%s: %d tokens taken over", self._path, len(self._tokens))


def _read(path: Path) -> Tokens:
    return Tokens.parse(_document(read_private(path, FILE_BYTES_MAX), path), str(path))


def _document(raw: bytes, path: Path) -> object:
    kinds = {".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}
    kind = kinds.get(path.suffix, "JSON")
    try:
        text = raw.decode()
        if kind == "TOML":
            return tomllib.loads(text)
        if kind == "YAML":
            import yaml

            return yaml.safe_load(text)
        return json.loads(text)
    except ImportError:
        raise ConfigError(
            source=str(path), field="file", problem="is YAML, which needs pyyaml; JSON and TOML don't"
        ) from None
    except Exception:  # noqa: BLE001 - parsers raise many things, and quote the text, which may be a token
        raise ConfigError(source=str(path), field="file", problem=f"isn't {kind}") from None
