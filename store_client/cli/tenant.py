"""`moonpool tenant`: who shares the pool, and how much each may store."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, Yes, open_pool
from moonpool.store_client.cli.rm import Total, confirm, report

app = typer.Typer(help="Tenants and their quotas.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="The tenant's name.")]


@app.command("list")
def list_all(
    master: Master = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show the tenants that have keyspaces or a quota. Needs the role admin or monitor."""
    import msgspec

    from moonpool.schemas.units import format_size
    from moonpool.store_client.cli.output import print_json, print_table, say

    with open_pool(master=master, config=config, assignments=assignments) as client:
        tenants = client.admin.tenants()
    if as_json:
        print_json([msgspec.structs.asdict(tenant) for tenant in tenants])
        return
    rows = [
        (
            one.tenant,
            format_size(one.used_bytes),
            format_size(one.quota_bytes) if one.quota_bytes else "none",
            one.keyspaces,
        )
        for one in tenants
    ]
    print_table("Tenants", ("tenant", "used", "quota", "keyspaces"), rows)
    if not rows:
        say("no tenants yet: one is there with its first keyspace, or with a quota (`moonpool tenant set`)")


@app.command("set")
def set_quota(
    tenant: Tenant,
    quota: Annotated[str, typer.Option(help="What it may store, for example 10GB; 0: no quota.")],
    master: Master = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Set a tenant's quota. Needs the role admin."""
    from moonpool.schemas.errors import InvalidParams
    from moonpool.schemas.units import format_size, parse_size
    from moonpool.store_client.cli.output import print_json, write

    try:
        quota_bytes = parse_size(quota)
    except ValueError as error:
        raise InvalidParams(field="--quota", value=quota, allowed=str(error)) from None
    with open_pool(master=master, config=config, assignments=assignments) as client:
        changed = client.admin.set_quota(tenant, quota_bytes)
    if as_json:
        print_json({"tenant": tenant, "quota_bytes": quota_bytes, "changed": changed})
        return
    size = format_size(quota_bytes) if quota_bytes else "as much as there is room for"
    write(f"tenant {tenant} may store {size}{'' if changed else ' (it was so already)'}\n")


@app.command("rm")
def remove(
    tenant: Tenant,
    force: Annotated[bool, typer.Option("--force", help="Leased and pinned blocks too.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many blocks would be removed.")
    ] = False,
    yes: Yes = False,
    master: Master = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Remove all blocks of a tenant, and its quota. Needs the role admin. Exit code 5 where some are leased or
    pinned, or a node is away."""
    from moonpool.schemas.errors import NotFound

    with open_pool(master=master, config=config, assignments=assignments) as client:
        if not any(one.tenant == tenant for one in client.admin.tenants()):
            raise NotFound(key=f"tenant {tenant}")
        confirm(f"remove everything of tenant {tenant}", dry_run or yes, needed=True)
        clear = client.admin.would_clear if dry_run else client.clear
        total = Total()
        for spec in client.admin.keyspaces_of(tenant):
            total.add(clear(spec.digest(), force=force))
        if not dry_run:
            client.admin.forget_quota(tenant)
    report(total, dry_run, as_json, known=True)
