"""Facts of servers and ports in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import moonpool
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import NodeEntry, NodeState
from moonpool.store_client.doctor.findings import Finding, broken, ok, warning
from moonpool.store_client.doctor.pool_probe import PortFacts, ServerFacts

CLOCK_WARNING_S = 1.0
CLOCK_BROKEN_S = 60.0
"""From here on certificates and tokens of one host may not be valid on another, and without etcd a master that is
started elsewhere may have an epoch in the past."""


def check_ports(ports: Sequence[PortFacts]) -> list[Finding]:
    """Each one is free, or ours."""
    found = []
    for facts in ports:
        where = f"{facts.what}: {facts.host}:{facts.port}"
        if facts.failure:
            found.append(
                broken("ports", f"{where} can't be listened on: {facts.failure}", "set another host or port")
            )
        elif facts.owner == "other":
            advice = f"`ss -ltnp 'sport = :{facts.port}'` says who; stop that, or set another port"
            found.append(broken("ports", f"{where} is taken, and no server of ours answers there", advice))
        elif facts.owner:
            found.append(ok("ports", f"{where} is taken by a {facts.owner} of ours"))
        else:
            found.append(ok("ports", f"{where} is free"))
    return found


def check_master(facts: ServerFacts) -> Finding:
    """It answers."""
    if facts.welcome is not None:
        return ok("master", f"the master at {facts.address} answers")
    if facts.other_protocol:
        return ok("master", f"the master at {facts.address} answers, in another protocol")
    if facts.unwelcome:
        return broken(
            "master",
            f"the master at {facts.address} refuses us: {facts.failure}",
            "set token_file to a token that it knows (MOONPOOL_TOKEN_FILE)",
        )
    return broken(
        "master",
        f"the master at {facts.address} can't be asked: {facts.failure}",
        "is it running (`moonpool master`, `moonpool serve`)? does it want TLS (tls_ca)? does it listen beyond 127.0.0.1 (host)? is "
        "--master right? does a firewall drop its port? --host-only leaves it out",
    )


def check_versions(servers: Sequence[ServerFacts]) -> list[Finding]:
    """One protocol, and better one version."""
    found = []
    for facts in servers:
        if facts.other_protocol:
            what = f"{facts.name} speaks another protocol than {PROTOCOL_VERSION}: {facts.failure}"
            found.append(broken("versions", what, "install the same Moonpool on both sides"))
        elif facts.welcome is not None and facts.welcome.version != moonpool.__version__:
            theirs = facts.welcome.version or "a version that doesn't say which"
            found.append(
                warning(
                    "versions",
                    f"{facts.name} is {theirs}, this is {moonpool.__version__}",
                    "they understand each other; upgrade the older one when you can",
                )
            )
    asked = sum(facts.welcome is not None for facts in servers)
    return found or [
        ok("versions", f"{asked} server(s): {moonpool.__version__}, protocol {PROTOCOL_VERSION}")
    ]


def check_clocks(servers: Sequence[ServerFacts]) -> list[Finding]:
    """Close together, as far as the way there lets us see."""
    found = []
    for facts in servers:
        apart_s = abs(facts.offset_s) - facts.slack_s
        if facts.welcome is None or apart_s <= CLOCK_WARNING_S:
            continue
        say = broken if apart_s > CLOCK_BROKEN_S else warning
        side = "ahead of" if facts.offset_s > 0 else "behind"
        found.append(
            say(
                "clock",
                f"the clock of {facts.name} is {abs(facts.offset_s):.1f} s {side} this one",
                "run chrony or ntpd on both hosts (`chronyc tracking`, `timedatectl`)",
            )
        )
    asked = sum(facts.welcome is not None for facts in servers)
    return found or [ok("clock", f"{asked} server(s): within {CLOCK_WARNING_S:g} s of this clock")]


def check_nodes(entries: Sequence[NodeEntry], servers: Sequence[ServerFacts]) -> list[Finding]:
    """`servers`: what asking each of `entries` gave."""
    if not entries:
        return [broken("nodes", "the pool has no node: nothing can be stored", "start one: `moonpool node`")]
    found = []
    for entry, facts in zip(entries, servers, strict=True):
        name = f"node {entry.info.node}"
        if entry.state in (NodeState.SUSPECT, NodeState.LOST):
            found.append(
                broken(
                    "nodes",
                    f"the master thinks that {name} is {entry.state.name.lower()}",
                    "look at its log; a node that will not come back is forgotten after some minutes",
                )
            )
        elif facts.failure and not facts.other_protocol:
            found.append(
                broken(
                    "nodes",
                    f"{name} is live, and can't be asked from here: {facts.failure}",
                    "set advertise to an address that this host reaches, and host to one that it listens on; "
                    "look at firewalls",
                )
            )
    live = Counter(entry.info.node for entry in entries if entry.state in (NodeState.LIVE, NodeState.JOINING))
    for name in [name for name, count in live.items() if count > 1]:
        found.append(
            warning(
                "nodes",
                f"{live[name]} nodes are named {name!r}: metrics and drains take them for one",
                "start each with a --name of its own, the host's for example",
            )
        )
    return found or [ok("nodes", f"{len(entries)} node(s) are live and answer")]
