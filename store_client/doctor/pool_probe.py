"""Asks servers: who they are, what time it is there, and who has a port."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from moonpool.schemas.errors import Forbidden, MoonpoolError, Unauthorized, VersionMismatch
from moonpool.schemas.messages import GetStatus, Hello, Message, Welcome, decode_from_master, decode_from_node
from moonpool.store_client.rpc.address import resolve
from moonpool.store_client.rpc.connection import RpcConnection
from moonpool.store_client.rpc.credentials import Credentials

TIMEOUT_S = 3.0
PORT_TIMEOUT_S = 1.0
"""A server of ours on this very host answers sooner."""
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`offset_s`: how far its clock is ahead of ours, known to within `slack_s`. `failure`: why it couldn't be asked;
    `other_protocol`: because it speaks another one; `unwelcome`: because of who asks."""

    name: str
    address: str
    welcome: Welcome | None = None
    offset_s: float = 0.0
    slack_s: float = 0.0
    failure: str = ""
    other_protocol: bool = False
    unwelcome: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    hello: Hello
    credentials: Credentials


@dataclass(frozen=True, slots=True)
class PortFacts:
    """`owner`: "" where the port is free, "master" or "node" where one of ours answers there, "server" where one refuses us,
    else "other".
    `failure`: why nobody could listen there at all."""

    what: str
    host: str
    port: int
    owner: str = ""
    failure: str = ""


def ask(
    name: str, address: str, caller: Caller, *, master: bool, timeout_s: float = TIMEOUT_S
) -> ServerFacts:
    """One server's facts."""
    decode: Any = decode_from_master if master else decode_from_node
    try:
        connection = RpcConnection(address, caller.hello, decode, caller.credentials)
    except MoonpoolError as error:  # an address that can't be one
        return ServerFacts(name, address, failure=str(error))
    start_s, before_s = time.monotonic(), time.time()
    try:
        _: Message = connection.call(GetStatus(), start_s + timeout_s)
    except MoonpoolError as error:
        return ServerFacts(
            name,
            address,
            failure=str(error),
            other_protocol=isinstance(error, VersionMismatch),
            unwelcome=isinstance(error, Unauthorized | Forbidden),
        )
    finally:
        connection.close()
    took_s = time.monotonic() - start_s
    welcome = connection.welcome
    if welcome is None or not welcome.time_ms:  # an older one says no time
        return ServerFacts(name, address, welcome)
    offset_s = welcome.time_ms / 1000 - (before_s + took_s / 2)
    return ServerFacts(name, address, welcome, offset_s, took_s / 2)


def ask_all(servers: Sequence[tuple[str, str]], caller: Caller) -> list[ServerFacts]:
    """Nodes, by (name, address): several at once, in the order given."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="doctor") as threads:
        return list(threads.map(lambda server: ask(server[0], server[1], caller, master=False), servers))


def look_at_port(what: str, host: str, port: int, caller: Caller) -> PortFacts:
    """Whether a server could listen there, and who does now."""
    try:
        family, _, _, _, target = resolve(host, port, socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
        return PortFacts(what, host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return PortFacts(what, host, port, failure=error.strerror or str(error))
    here = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    address = f"[{here}]:{port}" if ":" in here else f"{here}:{port}"
    facts = ask(what, address, caller, master=True, timeout_s=PORT_TIMEOUT_S)
    if facts.welcome is not None:
        return PortFacts(what, host, port, facts.welcome.server)
    ours = facts.other_protocol or facts.unwelcome
    return PortFacts(what, host, port, "server" if ours else "other")
