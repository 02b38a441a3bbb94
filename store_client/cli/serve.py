"""A master and a node as two processes on one machine. If one ends, the other is stopped: nothing is restarted in silence."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from moonpool.master.rest.server import missing_libraries
from moonpool.master.store.opening import state_file
from moonpool.schemas.config import ClientSettings, MasterSettings, NodeSettings, Settings
from moonpool.schemas.config_load import ENVIRONMENT_PREFIX
from moonpool.schemas.errors import ConfigError, DeadlineExceeded, MoonpoolError
from moonpool.schemas.messages import ClusterMap, NodeEntry, NodeState
from moonpool.schemas.units import format_size
from moonpool.store_client import StoreClient
from moonpool.store_client.children import START_TIMEOUT_S, start_child, start_timeout_s, stop_child
from moonpool.store_client.cli.failures import FAILED, OK
from moonpool.store_client.cli.output import print_json, print_table, say
from moonpool.store_client.node.layout import Layout
from moonpool.store_client.rpc.access import check_guarded
from moonpool.store_client.rpc.address import resolve

POLL_S = 0.05
HTTP_PORT = 50080
"""Of the REST interface, if it is free."""
CREDENTIALS = ("token", "token_file", "tls_ca", "tls_cert", "tls_key", "tls_verify_host")
"""Of the node: with these we ask the master whether it is there."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is started."""

    master: MasterSettings
    node: NodeSettings
    verbose: bool
    any_http_port: bool = False
    """Whether the REST interface may be had at whatever port is free, HTTP_PORT if possible."""


Children = dict[str, "subprocess.Popen[bytes]"]


def run_serve(plan: Plan, *, as_json: bool) -> int:
    """Starts both, prints where they are, and waits. Returns the exit code."""
    Layout.of(plan.node.size, plan.node.page_size)  # raises where the node would: with the master up already
    port_to_serve(plan.master.host, plan.master.port)
    http_port = http_port_to_serve(plan)
    check_guarded(plan.master.host, plan.master)
    check_guarded(plan.node.host, plan.node)
    if plan.master.tokens_file and not (plan.node.token or plan.node.token_file):
        problem = "is empty: with a tokens_file the node needs the token of an entry with the role node"
        raise ConfigError(source="settings", field="token_file", problem=problem)
    store = plan.master.store or f"file:{state_file(plan.node.name)}"
    master = plan.master.model_copy(update={"store": store, "http_port": http_port})
    node = plan.node
    children: Children = {}
    entry = None
    with stop_signals() as stopping:
        try:
            address = start_master(master, plan.verbose, children, stopping)
            if address is not None:
                node = node.model_copy(update={"master": address})
                start(node, "node", plan.verbose, children)
                entry = wait_serving(node, children, stopping)
            if entry is not None:
                announce(node.master, http_url(master), entry, as_json)
            code = wait_for_end(children, stopping)
        finally:
            for name in ("node", "master"):  # the node first, so that its last reports find a master
                if name in children:
                    stop_child(children[name], grace_s=10.0)
    if entry is not None and os.path.exists(entry.info.segment_path):
        size = format_size(entry.info.capacity_bytes)
        say(
            f"the blocks stay in {entry.info.segment_path} for the next start as {node.name}; "
            f"remove that file to give {size} of memory back"
        )
    return code


def start(settings: Settings, kind: str, verbose: bool, children: Children, *flags: str) -> None:
    """One child. What it prints is for people: our stdout is for the addresses alone."""
    words = [*command(kind, settings, verbose), *flags]
    children[kind] = start_child(words, environment=child_environment(settings), stdout=sys.stderr.fileno())


def start_master(
    settings: MasterSettings, verbose: bool, children: Children, stopping: threading.Event
) -> str | None:
    """Its address, as it says itself: the node must not join whoever else has that port. None: it ended, or a signal
    came."""
    with tempfile.TemporaryDirectory(prefix="moonpool-serve-") as folder:
        ready = Path(folder, "ready")
        start(settings, "master", verbose, children, "--ready-file", str(ready))
        limit_s = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            if stopping.is_set() or ended(children):
                return None
            if time.monotonic() > limit_s:
                raise DeadlineExceeded(peer="the master", what="its start", timeout_s=START_TIMEOUT_S)
            stopping.wait(POLL_S)
        port = ready.read_text().rpartition(":")[2]
        return f"{reachable(settings.host)}:{port}"


def command(kind: str, settings: Settings, verbose: bool) -> list[str]:
    """Of a child: every value that isn't the default goes by --set, so that no file or variable is read twice."""
    words = [sys.executable, "-m", "moonpool.store_client.cli.main", kind]
    for name, value in settings.model_dump(exclude_defaults=True).items():
        if name not in hidden(settings):
            words += ["--set", f"{name}={value}"]
    return [*words, "--verbose"] if verbose else words


def child_environment(settings: Settings) -> dict[str, str]:
    """This environment without our variables (MOONPOOL_PORT is the master's, not the node's as well), but for the
    settings that mustn't be seen on a command line."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    secrets = {ENVIRONMENT_PREFIX + name.upper(): str(getattr(settings, name)) for name in hidden(settings)}
    return kept | {name: text for name, text in secrets.items() if text}


def hidden(settings: Settings) -> list[str]:
    """Names of the settings that are secrets."""
    return [name for name, field in type(settings).model_fields.items() if not field.repr]


def wait_serving(node: NodeSettings, children: Children, stopping: threading.Event) -> NodeEntry | None:
    """The node as the master sees it, once it may be written to. None: a child ended, or a signal came."""
    timeout_s = start_timeout_s(node.size)
    limit_s = time.monotonic() + timeout_s
    said = time.monotonic()
    shown = {name: getattr(node, name) for name in CREDENTIALS}
    with StoreClient(ClientSettings(master=node.master, breaker_retry_s=POLL_S, **shown)) as client:
        while time.monotonic() < limit_s:
            if stopping.is_set() or ended(children):
                return None
            entry = find(client_map(client), node.name)
            if entry is not None:
                return entry
            if time.monotonic() - said > 1.0:
                say(f"waiting for the node to offer {format_size(node.size)}")
                said = time.monotonic() + 4.0
            stopping.wait(POLL_S)
    raise DeadlineExceeded(peer="the node", what="its start", timeout_s=timeout_s)


def client_map(client: StoreClient) -> ClusterMap | None:
    """The cluster map, or None where the master doesn't answer yet."""
    try:
        return client.cluster_map(timeout_s=1.0)
    except MoonpoolError:
        return None


def find(cluster: ClusterMap | None, name: str) -> NodeEntry | None:
    """The live node of that name."""
    nodes = cluster.nodes if cluster is not None else []
    return next((n for n in nodes if n.info.node == name and n.state is NodeState.LIVE), None)


def announce(master: str, http: str, entry: NodeEntry, as_json: bool) -> None:
    """One table, or one line of JSON, of everything that can be connected to."""
    info = entry.info
    if as_json:
        print_json(
            {
                "master": master,
                "http": http,
                "node": info.node,
                "node_rpc": info.rpc_address,
                "node_data": info.data_address,
                "node_socket": info.unix_path,
                "segment": info.segment_path,
                "size_bytes": info.capacity_bytes,
            }
        )
        return
    rows = [
        ("master", master),
        ("dashboard", f"{http}/ui" if http else "none"),
        ("REST", f"{http}/api/v1" if http else "none"),
        (f"node {info.node}", info.rpc_address),
        ("data", info.data_address),
        ("socket", info.unix_path),
        ("segment", f"{info.segment_path} ({format_size(info.capacity_bytes)})"),
    ]
    print_table("Moonpool serves", ("what", "where"), rows)
    say(f"try: moonpool status --master {master}    stop: Ctrl-C")


def wait_for_end(children: Children, stopping: threading.Event) -> int:
    """Until a signal comes (exit code 0) or a child ends by itself."""
    while not stopping.wait(POLL_S):
        name = ended(children)
        if name is not None:
            others = " and ".join(other for other in children if other != name)
            stopped = f"; stopping the {others}" if others else ""
            say(f"the {name} ended by itself with exit code {children[name].returncode}{stopped}")
            return FAILED
    return OK


def ended(children: Children) -> str | None:
    """A child that is no longer there."""
    return next((name for name, child in children.items() if child.poll() is not None), None)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set while the context is open."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def port_to_serve(host: str, port: int, flag: str = "port") -> int:
    """`port`, or a free one for 0. Raises ConfigError where nobody can listen there.

    Looked at before anything starts, so that the refusal comes at once. The port may be taken meanwhile: what our master
    says it listens on is what counts.
    """
    try:
        family, _, _, _, target = resolve(host, port, socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            found: int = probe.getsockname()[1]
            return found
    except OSError as error:
        problem = f"cannot listen on {host}:{port}: {error.strerror}"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise ConfigError(
                source="settings",
                field=flag.replace("-", "_"),
                problem=f"{problem}; --{flag} names another, 0 picks a free one",
            ) from None
        raise ConfigError(source="settings", field="host", problem=problem) from None


def http_port_to_serve(plan: Plan) -> int:
    """The REST interface's port; 0 where there is to be none, or a library that it needs is missing."""
    wanted = plan.master.http_port or (HTTP_PORT if plan.any_http_port else 0)
    if not wanted:
        return 0
    missing = missing_libraries()
    if missing:
        say(f"no REST interface: {', '.join(missing)} not installed (extra `master`)")
        return 0
    try:
        return port_to_serve(plan.master.http_host, wanted, "http-port")
    except ConfigError:
        if not plan.any_http_port:
            raise
        return port_to_serve(plan.master.http_host, 0, "http-port")


def http_url(master: MasterSettings) -> str:
    """Where the REST interface is; empty where it isn't."""
    scheme = "https" if master.tls_cert else "http"
    return f"{scheme}://{reachable(master.http_host)}:{master.http_port}" if master.http_port else ""


def reachable(host: str) -> str:
    """The address to connect to where `host` is listened on."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)
