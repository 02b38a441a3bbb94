"""`moonpool doctor`: what is wrong, here and in the pool, and what to do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, parsed

if TYPE_CHECKING:
    from moonpool.store_client.cli.output import Progress
    from moonpool.store_client.doctor.findings import Finding
    from moonpool.store_client.doctor.host_view import HostView
    from moonpool.store_client.doctor.pool_probe import Caller
    from moonpool.store_client.doctor.settings_probe import Found

FIND_TIMEOUT_S = 5.0

MEASURED_MAX = 8
"""Nodes that are read from: more would take long, and tell little more."""

COLOURS = {"ok": "green", "warning": "yellow", "broken": "bold red"}


def doctor(
    master: Master = None,
    host_only: Annotated[
        bool, typer.Option("--host-only", help="Look at this host alone: before anything runs.")
    ] = False,
    no_bandwidth: Annotated[
        bool,
        typer.Option(
            "--no-bandwidth", help="Don't write, read and remove up to 64 MiB on each of up to 8 nodes."
        ),
    ] = False,
    prefill_rate: Annotated[
        float,
        typer.Option(min=0.0, help="Tokens a second that one of your engines prefills; 0: assume 10,000."),
    ] = 0.0,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Check this host and the pool, and say what to do; exit code 1 where something is broken."""
    from moonpool.store_client.cli.failures import FAILED, OK
    from moonpool.store_client.cli.output import progress
    from moonpool.store_client.doctor.findings import Level
    from moonpool.store_client.doctor.host_view import HostView

    given = parsed(assignments or ()) | ({"master": master} if master else {})
    with progress("looking at this host") as shown:
        found = examine(HostView(), config, given, shown, host_only, no_bandwidth, prefill_rate)
    report(found, as_json)
    raise typer.Exit(FAILED if any(one.level is Level.BROKEN for one in found) else OK)


def examine(
    view: HostView,
    file: Path | None,
    given: dict[str, object],
    shown: Progress,
    host_only: bool,
    no_bandwidth: bool,
    prefill_rate: float,
) -> list[Finding]:
    """All findings, in the order of the table of checks. Raises ConfigError for a --set that no kind knows."""
    from moonpool.store_client.doctor.host_checks import check_host
    from moonpool.store_client.doctor.host_facts import read_host
    from moonpool.store_client.doctor.pool_checks import check_ports
    from moonpool.store_client.doctor.pool_probe import look_at_port
    from moonpool.store_client.doctor.settings_probe import check_settings, read_settings

    settings = read_settings(file, view.environment, given)
    caller, problem = _caller(settings)
    found = [*check_settings(settings), *problem, *check_host(read_host(view, settings.node), settings.node)]
    wanted = [("master", settings.master.host, settings.master.port)]
    wanted += [("REST", settings.master.http_host, settings.master.http_port)]
    wanted += [("node's data", settings.node.host, settings.node.data_port)]
    found += check_ports([look_at_port(*port, caller) for port in wanted if port[2]])
    if not host_only and not problem:
        found += _examine_pool(settings, caller, shown, no_bandwidth, prefill_rate)
    return found


def _examine_pool(
    settings: Found, caller: Caller, shown: Progress, no_bandwidth: bool, prefill_rate: float
) -> list[Finding]:
    from moonpool.schemas.messages import NodeState
    from moonpool.store_client import StoreClient
    from moonpool.store_client.doctor import bandwidth
    from moonpool.store_client.doctor.pool_checks import (
        check_clocks,
        check_master,
        check_nodes,
        check_versions,
    )
    from moonpool.store_client.doctor.pool_probe import ask, ask_all

    shown.what = "asking the master"
    addresses, problem = _masters(settings)
    masters = [ask(f"the master at {address}", address, caller, master=True) for address in addresses]
    found = [*problem, *(check_master(facts) for facts in masters)]
    if all(facts.welcome is None for facts in masters):
        return found + (check_versions(masters) if any(facts.other_protocol for facts in masters) else [])
    with StoreClient(settings.client) as client:
        entries = client.cluster_map().nodes
        shown.what = f"asking {len(entries)} node(s)"
        servers = ask_all([(f"node {e.info.node}", e.info.rpc_address) for e in entries], caller)
        everyone = [*masters, *servers]
        found += [*check_versions(everyone), *check_clocks(everyone), *check_nodes(entries, servers)]
        if not no_bandwidth:
            shown.what = "measuring what can be read from each node"
            live = [entry.info for entry in entries if entry.state is NodeState.LIVE]
            rates = bandwidth.measure(client, live[:MEASURED_MAX])
            sizes = bandwidth.token_sizes(client.list_keyspaces())
            rate = prefill_rate or bandwidth.PREFILL_TOKENS_S
            found += bandwidth.judge(rates, sizes, rate, given=bool(prefill_rate))
    return found


def _masters(settings: Found) -> tuple[list[str], list[Finding]]:
    """Their addresses, and why there are none."""
    from moonpool.schemas.errors import MoonpoolError
    from moonpool.store_client.directory import Directory
    from moonpool.store_client.doctor.findings import broken

    try:
        directory = Directory.of(settings.client)
        found = directory.find(time.monotonic() + FIND_TIMEOUT_S)
    except MoonpoolError as error:
        advice = "is etcd running? is --master right? does etcd want a user or TLS (etcd_user, etcd_ca)?"
        return [], [broken("master", f"the masters can't be asked for: {error}", advice)]
    if not found:
        advice = "start one (`moonpool master --store etcd://...`), or is --master that of another cluster?"
        return [], [broken("master", f"{directory} knows of no master", advice)]
    return found, []


def _caller(settings: Found) -> tuple[Caller, list[Finding]]:
    """Who asks, and what is wrong with the secrets that were to be shown."""
    from moonpool.schemas.errors import ConfigError
    from moonpool.schemas.framing import PROTOCOL_VERSION
    from moonpool.schemas.messages import Hello
    from moonpool.store_client.doctor.findings import broken
    from moonpool.store_client.doctor.pool_probe import Caller
    from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials

    hello = Hello(PROTOCOL_VERSION, "client", "moonpool doctor", settings.client.tenant)
    try:
        return Caller(hello, Credentials.of(settings.client)), []
    except ConfigError as error:
        advice = "mend it: without it no server that wants a token or a certificate answers"
        return Caller(hello, NO_CREDENTIALS), [broken("config", str(error), advice)]


def report(found: list[Finding], as_json: bool) -> None:
    """What is broken first, and all is well last."""
    from rich.text import Text

    from moonpool.store_client.cli.output import print_json, print_lines
    from moonpool.store_client.doctor.findings import Level

    count = {level: sum(one.level is level for one in found) for level in Level}
    if as_json:
        rows = [
            {"check": one.check, "level": one.level.value, "what": one.what, "advice": one.advice}
            for one in found
        ]
        print_json({"findings": rows, **{level.value: number for level, number in count.items()}})
        return
    lines = []
    for level in (Level.BROKEN, Level.WARNING, Level.OK):
        for one in found:
            if one.level is level:
                line = Text.assemble((f"{level.value:<8}", COLOURS[level]), f"{one.check}: {one.what}")
                lines.append(line)
                if one.advice:
                    lines.append(Text(f"        -> {one.advice}"))
    lines.append(
        Text(f"{count[Level.BROKEN]} broken, {count[Level.WARNING]} warnings, {count[Level.OK]} well")
    )
    print_lines(lines)
