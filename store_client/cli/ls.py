"""`moonpool ls`: keyspaces, nodes, and the keys of plain objects and blocks."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.store_client.cli.options import (
    After,
    AsJson,
    Assignments,
    ConfigFile,
    Limit,
    Master,
    Tenant,
    open_pool,
)

if TYPE_CHECKING:
    from moonpool.schemas.keyspace import KeyspaceSpec
    from moonpool.schemas.messages import KeyspaceFacts, NodeEntry
    from moonpool.store_client import StoreClient

LIST_TIMEOUT_S = 60.0
"""Nodes are asked for every slot."""


class What(StrEnum):
    """What to list."""

    KEYSPACES = "keyspaces"
    NODES = "nodes"
    KEYS = "keys"


def ls(
    what: Annotated[What, typer.Argument(help="keyspaces, nodes or keys.")] = What.KEYSPACES,
    keyspace: Annotated[
        str,
        typer.Option(help="Keys of this one: the first digits of its digest. Plain objects if not given."),
    ] = "",
    prefix: Annotated[str, typer.Option(help="Only keys (or names of keyspaces, nodes) that begin so.")] = "",
    limit: Limit = 100,
    after: After = "",
    master: Master = None,
    tenant: Tenant = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """List keyspaces, nodes, or keys, page by page."""
    from moonpool.store_client.cli.output import print_json, print_table, progress, say

    with (
        open_pool(master=master, tenant=tenant, config=config, assignments=assignments) as client,
        progress(f"listing {what.value}"),
    ):
        if what is What.KEYSPACES:
            columns, rows, more = _keyspaces(client, prefix, after, limit)
        elif what is What.NODES:
            columns, rows, more = _nodes(client, prefix, after, limit)
        else:
            columns, rows, more = _keys(client, keyspace, prefix, after, limit)
    if as_json:
        print_json({what.value: [facts for _, facts in rows], "after": more or None})
        return
    print_table("", columns, [cells for cells, _ in rows])
    if not rows:
        say(f"no {what.value} here")
    if more:
        say(f"there is more: --after {more}")


Row = tuple[tuple[object, ...], dict[str, Any]]
"""As a table's cells, and as JSON."""

Listing = tuple[tuple[str, ...], list[Row], str]
"""Columns, rows, and behind what the next page begins."""


def _keyspaces(client: StoreClient, prefix: str, after: str, limit: int) -> Listing:
    specs = sorted((spec.digest().hex(), spec) for spec in client.list_keyspaces())
    wanted = [(digest, spec) for digest, spec in specs if digest > after and spec.name.startswith(prefix)]
    page = wanted[:limit]
    rows = [_keyspace_row(digest, spec, _facts(client, digest)) for digest, spec in page]
    columns = ("keyspace", "name", "kind", "ranks", "blocks", "copies", "size", "pins")
    return columns, rows, page[-1][0] if len(wanted) > limit else ""


def _facts(client: StoreClient, digest: str) -> KeyspaceFacts:
    return client.admin.describe_keyspace(bytes.fromhex(digest))


def _keyspace_row(digest: str, spec: KeyspaceSpec, facts: KeyspaceFacts) -> Row:
    from moonpool.schemas.units import format_size
    from moonpool.store_client.cli.keys import DIGITS

    cells = (
        digest[:DIGITS],
        spec.name,
        spec.kind.value,
        spec.world,
        f"{facts.rows:,}",
        f"{facts.copies:,}",
        format_size(facts.payload_bytes),
        facts.pins,
    )
    document = {
        "keyspace": digest,
        "name": spec.name,
        "kind": spec.kind.value,
        "tenant": spec.tenant,
        "shard_bytes": list(spec.shard_bytes),
        "block_tokens": spec.block_tokens,
        "identity": dict(spec.identity),
        "blocks": facts.rows,
        "copies": facts.copies,
        "replicas": facts.replicas,
        "payload_bytes": facts.payload_bytes,
        "pins": facts.pins,
    }
    return cells, document


def _nodes(client: StoreClient, prefix: str, after: str, limit: int) -> Listing:
    from moonpool.store_client.cli.status import NODE_COLUMNS, node_document, node_row

    def order(entry: NodeEntry) -> str:
        return f"{entry.info.node}/{entry.info.segment.hex()}"  # two segments may bear one name for a while

    entries = sorted(client.cluster_map().nodes, key=order)
    wanted = [entry for entry in entries if order(entry) > after and entry.info.node.startswith(prefix)]
    page = wanted[:limit]
    more = order(page[-1]) if len(wanted) > limit else ""
    return NODE_COLUMNS, [(node_row(entry), node_document(entry)) for entry in page], more


def _keys(client: StoreClient, keyspace: str, prefix: str, after: str, limit: int) -> Listing:
    from moonpool.schemas.keyspace import objects_keyspace
    from moonpool.store_client.cli.keys import find_keyspace
    from moonpool.store_client.cli.listed import key_text

    spec = find_keyspace(client, keyspace) if keyspace else objects_keyspace(client.settings.tenant)
    digest = spec.digest()
    page = client.admin.list_page(
        spec,
        after=after,
        limit=limit,
        keep=lambda listed: key_text(spec, digest, listed).startswith(prefix),
        timeout_s=LIST_TIMEOUT_S,
    )
    rows: list[Row] = []
    for node, listed in page.found:
        text = key_text(spec, digest, listed)
        rows.append(((text, listed.rank, node), {"key": text, "rank": listed.rank, "node": node}))
    return ("key", "rank", "node"), rows, page.after
