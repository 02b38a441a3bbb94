"""`moonpool warm`: copies of blocks ahead of use."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, Tenant, open_pool


def warm(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY...", help="As for inspect.")] = None,
    keyspace: Annotated[
        str, typer.Option(help="All of a keyspace, the hottest blocks first: its digest or the first digits.")
    ] = "",
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Of each KEY all blocks before it in its run, too.")
    ] = False,
    node: Annotated[
        str, typer.Option(help="Where the copies are to be; empty: wherever there is room.")
    ] = "",
    copies: Annotated[int, typer.Option(help="Without --node: until there are so many of each.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be copied.")] = False,
    master: Master = None,
    tenant: Tenant = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Have nodes copy blocks ahead of use. It is ordered when this returns, and done in the background."""
    from moonpool.schemas.errors import InvalidParams
    from moonpool.schemas.messages import Warmed
    from moonpool.schemas.units import format_size
    from moonpool.store_client.cli.keys import find, find_keyspace
    from moonpool.store_client.cli.output import print_json, progress, write

    if bool(keys) == bool(keyspace):
        raise InvalidParams(field="what to warm", value=list(keys or []), allowed="KEYs, or else --keyspace")
    with (
        open_pool(master=master, tenant=tenant, config=config, assignments=assignments) as client,
        progress("asking the master"),
    ):
        wanted: dict[bytes, list[bytes]] = {}
        if keyspace:
            wanted[find_keyspace(client, keyspace).digest()] = []
        for place in [find(client, key)[0] for key in keys or []]:
            wanted.setdefault(place.keyspace, []).append(place.block_hash)
        options = {"with_prefix": prefix, "node": node, "copies": copies, "dry_run": dry_run}
        parts = [client.admin.warm(one, hashes, **options) for one, hashes in wanted.items()]  # type: ignore[arg-type]
    numbers = [sum(getattr(part, name) for part in parts) for name in Warmed.__struct_fields__]
    if as_json:
        print_json({"dry_run": dry_run, **dict(zip(Warmed.__struct_fields__, numbers, strict=True))})
        return
    count, size_bytes, left_out = numbers
    what = "would be ordered" if dry_run else "are ordered"
    more = f"; {left_out:,} more have to wait until these are made: ask again" if left_out else ""
    write(f"{count:,} copies ({format_size(size_bytes)}) {what}{more}\n")
