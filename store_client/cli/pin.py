"""`moonpool pin` and `moonpool unpin`."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, Tenant, open_pool

Keys = Annotated[list[str], typer.Argument(metavar="KEY...", help="As for inspect.")]


def pin(
    keys: Keys,
    ttl: Annotated[
        str, typer.Option(help="How long, for example 90s, 15m, 2h, 1d; 0: until unpinned.")
    ] = "0",
    soft: Annotated[
        bool,
        typer.Option(
            "--soft",
            help="Give way to a put that finds no other room; not for blocks of chains; at most 10m.",
        ),
    ] = False,
    master: Master = None,
    tenant: Tenant = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Keep keys, and all that they hang on, from being evicted. A later pin never shortens an earlier one."""
    from moonpool.schemas.errors import InvalidParams
    from moonpool.schemas.units import parse_duration_s
    from moonpool.store_client.cli.keys import find
    from moonpool.store_client.cli.output import print_json, progress, write

    try:
        ttl_s = parse_duration_s(ttl)
    except ValueError as error:
        raise InvalidParams(field="--ttl", value=ttl, allowed=str(error)) from None
    if soft and not ttl_s:
        raise InvalidParams(field="--ttl", value=ttl, allowed="a time, for a soft pin")
    count = 0
    with (
        open_pool(master=master, tenant=tenant, config=config, assignments=assignments) as client,
        progress("pinning"),
    ):
        for place in [find(client, key)[0] for key in keys]:
            if soft:
                count += client.admin.soft_pin(place.keyspace, [place.block_hash], ttl_s, rank=place.rank)
            else:
                count += client.pin(place.keyspace, [place.block_hash], ttl_s=ttl_s)
    if as_json:
        print_json({"pinned": count, "ttl_s": ttl_s or None, "soft": soft})
    else:
        shown = f"{ttl.strip()} s" if ttl.strip()[-1:].isdigit() else ttl.strip()
        write(f"pinned {count} key(s) {f'for {shown}' if ttl_s else 'until unpinned'}\n")


def unpin(
    keys: Keys,
    master: Master = None,
    tenant: Tenant = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Take the pins of keys back. Soft pins end by themselves."""
    from moonpool.store_client.cli.keys import find
    from moonpool.store_client.cli.output import print_json, progress, write

    count = 0
    with (
        open_pool(master=master, tenant=tenant, config=config, assignments=assignments) as client,
        progress("unpinning"),
    ):
        for place in [find(client, key)[0] for key in keys]:
            count += client.unpin(place.keyspace, [place.block_hash])
    if as_json:
        print_json({"unpinned": count})
    else:
        write(f"unpinned {count} of {len(keys)} key(s)\n")
