"""Connections to etcd's endpoints: one at a time, the next one after a failure; signed in where a user is set."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from etcd3aio.auth import AuthService
from etcd3aio.connections import ConnectionManager
from etcd3aio.errors import (
    EtcdConnectionError,
    EtcdPermissionDeniedError,
    EtcdTransientError,
    EtcdUnauthenticatedError,
)
from etcd3aio.kv import KVService
from etcd3aio.lease import LeaseService
from etcd3aio.watch import WatchService

from moonpool.schemas.errors import Closed, ConfigError, DeadlineExceeded, RpcFailed, StoreFailed

log = logging.getLogger(__name__)

Result = TypeVar("Result")

REPLY_BYTES_MAX = 16 << 20
NEVER_SENT = "failed to connect"
"""gRPC's words where no connection was had: whatever was asked has not happened."""
SIGN_IN_AGAIN = ("invalid auth token", "revision of auth store is old", "user name is empty")
SIGN_IN_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Where etcd is, and who we are to it. Files are read anew for each connection, so they may be rotated."""

    endpoints: tuple[str, ...]
    user: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""


class EtcdFailure(Exception):
    """A call that etcd answered with an error: gRPC's code, and words."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Link:
    """One connection. `retired` is done when another has taken its place: who watches on it moves there."""

    def __init__(self, endpoint: str, access: EtcdAccess) -> None:
        manager = ConnectionManager([endpoint], keepalive_time_ms=5000, keepalive_timeout_ms=2000)
        manager.target = f"dns:///{endpoint}"  # its own scheme takes addresses only, no names
        manager.grpc_options += [
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),  # else a new connection waits out an old one's pauses
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
        ]
        self.endpoint = endpoint
        self._channel = manager.get_channel(
            ca_cert=_read(access.ca, "etcd_ca"),
            cert_chain=_read(access.cert, "etcd_cert"),
            cert_key=_read(access.key, "etcd_key"),
        )
        self.auth = AuthService(self._channel, max_attempts=1)
        self.kv = KVService(self._channel, max_attempts=1)
        self.lease = LeaseService(self._channel, max_attempts=1)
        self.watch = WatchService(self._channel, max_attempts=1, max_reconnect_backoff_seconds=1.0)
        self.signed_in = not access.user
        self.retired = asyncio.get_running_loop().create_future()
        self.calls = 0

    def set_token(self, token: str) -> None:
        """Sent with every call from now on."""
        for service in (self.kv, self.lease, self.watch):
            service.set_token(token)
        self.signed_in = True

    async def close(self) -> None:
        """Ends what still runs on it."""
        if not self.retired.done():
            self.retired.set_result(None)
        await self._channel.close()


class EtcdLinks:
    """Calls to whichever endpoint answers. `name` is for messages."""

    def __init__(self, access: EtcdAccess) -> None:
        self.name = "etcd://" + ";".join(access.endpoints)
        self._access = access
        self._turn = 0
        self._link: Link | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._sign_in = asyncio.Lock()
        self.closed = False

    def current(self) -> Link:
        """The connection to use now. Raises Closed, ConfigError (a certificate can't be read)."""
        if self.closed:
            raise Closed(what="the metadata store")
        if self._link is None:
            endpoints = self._access.endpoints
            self._link = Link(endpoints[self._turn % len(endpoints)], self._access)
        return self._link

    async def call(
        self,
        what: str,
        ask: Callable[[Link, float], Awaitable[Result]],
        timeout_s: float,
        *,
        repeatable: bool,
    ) -> Result:
        """Asks the endpoints in turn until one answers. What isn't `repeatable` is sent to one that might have
        got it only once. Raises EtcdFailure for an answer that is an error; DeadlineExceeded, RpcFailed."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        tries_left = len(self._access.endpoints)
        reason = ""
        while (left_s := end_s - loop.time()) > 0:
            link = self.current()
            link.calls += 1
            try:
                async with asyncio.timeout(left_s / max(tries_left, 1)):
                    await self.sign_in(link)
                    return await ask(link, left_s)
            except Exception as error:  # noqa: BLE001  # the library raises four kinds of its own beside gRPC's
                failure = _failure(error)
            finally:
                self._done(link)
            if failure.details.endswith(SIGN_IN_AGAIN) and link.signed_in and self._access.user:
                link.signed_in = False
                continue
            if failure.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise failure
            reason = failure.details or reason
            self.turn(link)
            tries_left -= 1
            if not repeatable and NEVER_SENT not in failure.details:
                break
            await asyncio.sleep(min(0.05, max(end_s - loop.time(), 0)))
        if end_s - loop.time() <= 0.001 and not reason:
            raise DeadlineExceeded(peer=self.name, what=what, timeout_s=timeout_s)
        raise RpcFailed(peer=self.name, reason=f"{what}: {reason or 'no answer'}")

    async def sign_in(self, link: Link) -> None:
        """Fetches a token where the user's is not known on this connection. Raises StoreFailed, gRPC's errors."""
        async with self._sign_in:
            if link.signed_in:
                return
            password = (_read(self._access.password_file, "etcd_password_file") or b"").decode().rstrip("\n")
            try:
                answer = await link.auth.authenticate(self._access.user, password, timeout=SIGN_IN_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    reason = f"user {self._access.user!r}: {error.details()}"
                    raise StoreFailed(store=self.name, reason=reason) from None
                raise
            link.set_token(answer.token)

    def turn(self, link: Link) -> None:
        """This connection has failed: the next call goes elsewhere, by a new one where there is but one endpoint."""
        if link is self._link:
            self._link = None
            self._turn += 1
            link.retired.set_result(None)
            self._close_if_idle(link)

    def _done(self, link: Link) -> None:
        link.calls -= 1
        self._close_if_idle(link)

    def _close_if_idle(self, link: Link) -> None:
        if link.retired.done() and not link.calls:
            task = asyncio.ensure_future(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Ends all."""
        self.closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)


def _read(path: str, setting: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(source="settings", field=setting, problem=f"{path}: {error.strerror}") from None


def _failure(error: Exception) -> EtcdFailure:
    """What a call raised, as one kind. Raises what isn't etcd's."""
    if isinstance(error, EtcdFailure):
        return error
    cause: Any = error.__cause__ if isinstance(error.__cause__, grpc.aio.AioRpcError) else error
    if isinstance(cause, grpc.aio.AioRpcError):
        return EtcdFailure(cause.code(), cause.details() or cause.code().name)
    if isinstance(error, TimeoutError):
        return EtcdFailure(grpc.StatusCode.DEADLINE_EXCEEDED, "")
    if isinstance(error, (EtcdConnectionError, EtcdTransientError)):
        return EtcdFailure(grpc.StatusCode.UNAVAILABLE, str(error))
    if isinstance(error, (EtcdUnauthenticatedError, EtcdPermissionDeniedError)):
        return EtcdFailure(grpc.StatusCode.PERMISSION_DENIED, str(error))
    raise error
