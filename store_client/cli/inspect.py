"""`moonpool inspect`: everything known of one key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moonpool.store_client.cli.options import (
    AsJson,
    Assignments,
    ConfigFile,
    Limit,
    Master,
    Tenant,
    open_pool,
)

if TYPE_CHECKING:
    from moonpool.schemas.messages import Description
    from moonpool.store_client import StoreClient
    from moonpool.store_client.cli.keys import Place

Key = Annotated[
    str, typer.Argument(help="HASH#KEYSPACE as ls prints it, a PoolKey's text, or a plain object's key.")
]


def inspect(
    key: Key,
    chain: Annotated[
        bool, typer.Option("--chain", help="Show the blocks that it hangs on, up to its run's first.")
    ] = False,
    limit: Limit = 32,
    master: Master = None,
    tenant: Tenant = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show one key: its ranks and copies, position, lease and pin; exit code 4 where it isn't there."""
    from moonpool.store_client.cli.keys import find
    from moonpool.store_client.cli.output import print_json, progress

    with (
        open_pool(master=master, tenant=tenant, config=config, assignments=assignments) as client,
        progress("asking the master"),
    ):
        place, found = find(client, key)
        nodes = {entry.info.segment: entry.info.node for entry in client.cluster_map().nodes}
        blocks = _up(client, place, found, limit) if chain else []
    if as_json:
        facts = document(place, found, nodes)
        if chain:
            facts["chain"] = [
                document(place, block, nodes) | {"hash": block_hash.hex()} for block_hash, block in blocks
            ]
        print_json(facts)
    else:
        show(key, place, found, nodes)
        if chain:
            show_chain(place, blocks)


def _up(client: StoreClient, place: Place, found: Description, limit: int) -> list[tuple[bytes, Description]]:
    """The blocks above, nearest first. Links end with the run."""
    from moonpool.schemas.errors import NotFound

    blocks: list[tuple[bytes, Description]] = []
    while found.parent and len(blocks) < limit:
        parent = found.parent
        try:
            found = client.describe(place.keyspace, parent)
        except NotFound:  # it was removed since
            break
        blocks.append((parent, found))
    return blocks


def document(place: Place, found: Description, nodes: dict[bytes, str]) -> dict[str, Any]:
    """What --json prints."""
    return {
        "keyspace": place.keyspace.hex(),
        "name": place.spec.name,
        "kind": place.spec.kind.value,
        "hash": place.block_hash.hex(),
        "rank": place.rank if place.rank >= 0 else None,
        "ranks": place.spec.world,
        "ready": found.ready,
        "position": found.position,
        "parent": found.parent.hex() or None,
        "children": found.children,
        "lease_s": found.lease_ms / 1000,
        "pinned": found.pinned,
        "pin_s": found.pin_ms / 1000 if found.pinned and found.pin_ms >= 0 else None,
        "age_s": found.age_ms / 1000,
        "copies": [
            {
                "rank": copy.rank,
                "node": nodes.get(copy.segment),
                "segment": copy.segment.hex(),
                "slot": copy.slot,
                "generation": copy.generation,
                "size_bytes": copy.length,
            }
            for copy in found.copies
        ],
    }


def show(key: str, place: Place, found: Description, nodes: dict[bytes, str]) -> None:
    """The same as tables."""
    from moonpool.schemas.units import format_size
    from moonpool.store_client.cli.output import print_facts, print_table

    facts: dict[str, object] = {
        "keyspace": f"{place.keyspace.hex()} ({place.spec.name}, {place.spec.kind.value})",
        "hash": place.block_hash.hex(),
        "ready": "yes" if found.ready else "no: a rank, or a block before it, is missing",
        "last use": f"{found.age_ms / 1000:.1f} s ago",
        "lease": f"{found.lease_ms / 1000:.1f} s left" if found.lease_ms else "none",
        "pin": pin_text(found),
    }
    if place.spec.kind.value == "chained":
        facts["position"] = found.position
        facts["parent"] = found.parent.hex() or "none: it is the first block of its run"
        facts["children"] = found.children
    print_facts(key, facts)
    rows = [
        (copy.rank, nodes.get(copy.segment, "?"), copy.slot, copy.generation, format_size(copy.length))
        for copy in found.copies
    ]
    title = f"Copies of {len({copy.rank for copy in found.copies})} of {place.spec.world} rank(s)"
    print_table(title, ("rank", "node", "slot", "generation", "size"), rows)


def show_chain(place: Place, blocks: list[tuple[bytes, Description]]) -> None:
    """The blocks above, nearest first."""
    from moonpool.store_client.cli.output import print_table

    rows = [
        (
            block.position,
            block_hash.hex(),
            "yes" if block.ready else "no",
            f"{len({copy.rank for copy in block.copies})}/{place.spec.world}",
            f"{block.lease_ms / 1000:.1f} s" if block.lease_ms else "",
            "yes" if block.pinned else "",
            f"{block.age_ms / 1000:.1f} s",
        )
        for block_hash, block in blocks
    ]
    columns = ("position", "hash", "ready", "ranks", "lease", "pin", "age")
    print_table("It hangs on", columns, rows)


def pin_text(found: Description) -> str:
    """How long the pin lasts."""
    if not found.pinned:
        return "none"
    return "until unpinned" if found.pin_ms < 0 else f"{found.pin_ms / 1000:.1f} s left"
