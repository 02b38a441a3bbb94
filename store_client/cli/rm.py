"""`moonpool rm`: keys, all keys that begin alike, or a keyspace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from moonpool.store_client.cli.options import (
    AsJson,
    Assignments,
    ConfigFile,
    Master,
    Tenant,
    Yes,
    open_pool,
)

if TYPE_CHECKING:
    from moonpool.schemas.keyspace import KeyspaceSpec
    from moonpool.schemas.messages import Removed
    from moonpool.store_client import StoreClient
    from moonpool.store_client.cli.output import Progress

BATCH = 4096
"""Keys of one request."""

PAGE = 10_000
LIST_TIMEOUT_S = 60.0


@dataclass
class Total:
    """What all requests together did."""

    count: int = 0
    skipped: int = 0
    pending: set[str] = field(default_factory=set)

    def add(self, removed: Removed) -> None:
        """One answer more."""
        self.count += removed.count
        self.skipped += removed.skipped
        self.pending.update(removed.pending)


def rm(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="As for inspect.")] = None,
    prefix: Annotated[
        str, typer.Option(help="Every key that begins so: plain objects, or keys of --keyspace.")
    ] = "",
    keyspace: Annotated[
        str, typer.Option(help="Without --prefix everything in it; the first digits of its digest.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Leased and pinned ones too.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many blocks would be removed.")
    ] = False,
    yes: Yes = False,
    master: Master = None,
    tenant: Tenant = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Remove keys with all that hangs on them; exit code 5 where some are leased or pinned, or a node is away."""
    from moonpool.schemas.errors import InvalidParams
    from moonpool.store_client.cli.output import progress

    if bool(keys) == bool(prefix or keyspace):
        raise InvalidParams(
            field="what to remove", value=list(keys or []), allowed="KEYs, or else --prefix or --keyspace"
        )
    with open_pool(master=master, tenant=tenant, config=config, assignments=assignments) as client:
        remove = _dry(client, force) if dry_run else _real(client, force)
        total = Total()
        if keys:
            with progress("looking them up"):
                batches = _named(client, keys)
            confirm(f"remove {len(keys)} key(s) with all that hangs on them", dry_run or yes, needed=False)
        else:
            batches = _selected(client, keyspace, prefix)
            what = (
                f"everything in keyspace {keyspace}"
                if not prefix
                else f"every key that begins with {prefix!r}"
            )
            confirm(f"remove {what}", dry_run or yes, needed=True)
        with progress("removing") as shown:
            _run(remove, batches, total, shown)
    report(total, dry_run, as_json)


Remover = Callable[["KeyspaceSpec", list[bytes]], "Removed"]
"""Removes rows of a keyspace; no hashes: all of it."""

Batches = Iterable[tuple["KeyspaceSpec", list[bytes]]]


def _run(remove: Remover, batches: Batches, total: Total, shown: Progress) -> None:
    for spec, hashes in batches:
        total.add(remove(spec, hashes))
        shown.what = f"removing, {total.count:,} blocks so far"


def _real(client: StoreClient, force: bool) -> Remover:
    def remove(spec: KeyspaceSpec, hashes: list[bytes]) -> Removed:
        if not hashes:
            return client.clear(spec.digest(), force=force)
        return client.remove(spec.digest(), hashes, force=force)

    return remove


def _dry(client: StoreClient, force: bool) -> Remover:
    def remove(spec: KeyspaceSpec, hashes: list[bytes]) -> Removed:
        if not hashes:
            return client.admin.would_clear(spec.digest(), force=force)
        return client.admin.would_remove(spec.digest(), hashes, force=force)

    return remove


def _named(client: StoreClient, keys: list[str]) -> Batches:
    """The rows that keys name. Raises NotFound for the first that isn't there, before anything is removed."""
    from moonpool.store_client.cli.keys import find

    places = [find(client, key)[0] for key in keys]
    return [(place.spec, [place.block_hash]) for place in places]


def _selected(client: StoreClient, keyspace: str, prefix: str) -> Batches:
    """What --keyspace and --prefix select."""
    from moonpool.schemas.keyspace import objects_keyspace
    from moonpool.store_client.cli.keys import find_keyspace

    spec = find_keyspace(client, keyspace) if keyspace else objects_keyspace(client.settings.tenant)
    return _listed(client, spec, prefix) if prefix else [(spec, [])]


def _listed(
    client: StoreClient, spec: KeyspaceSpec, prefix: str
) -> Iterator[tuple[KeyspaceSpec, list[bytes]]]:
    """Rows whose key texts begin so, in batches. Listed before any is removed: slots would move under the listing."""
    from moonpool.store_client.cli.listed import key_text

    digest, after, found = spec.digest(), "", dict[bytes, None]()
    while True:
        page = client.admin.list_page(
            spec,
            after=after,
            limit=PAGE,
            keep=lambda listed: key_text(spec, digest, listed).startswith(prefix),
            timeout_s=LIST_TIMEOUT_S,
        )
        found |= dict.fromkeys(listed.block_hash for _, listed in page.found)
        after = page.after
        if not after:
            break
    hashes = list(found)
    for start in range(0, len(hashes), BATCH):
        yield spec, hashes[start : start + BATCH]


def confirm(what: str, agreed: bool, *, needed: bool) -> None:
    """Asks on a terminal. Where nobody can be asked, what removes more than it names needs --yes."""
    from moonpool.schemas.errors import ConfigError

    if agreed:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"{what}?", abort=True, err=True)
    elif needed:
        raise ConfigError(
            source="command line",
            field="--yes",
            problem=f"is needed to {what} where no terminal is there to ask; --dry-run says how much it is",
        )


def report(total: Total, dry_run: bool, as_json: bool, *, known: bool = False) -> None:
    """Says what was removed, and ends the command. `known`: what was to be emptied is there, empty or not."""
    from moonpool.store_client.cli.failures import NOT_THERE, OK, REFUSED
    from moonpool.store_client.cli.output import print_json, say, write

    if as_json:
        pending = sorted(total.pending)
        print_json({"removed": total.count, "skipped": total.skipped, "pending": pending, "dry_run": dry_run})
    else:
        write(f"{'would remove' if dry_run else 'removed'} {total.count:,} block(s)\n")
    if total.skipped:
        say(
            f"{total.skipped:,} block(s) are leased or pinned, or others hang on them that are; --force takes them too"
        )
    if total.pending:
        say(
            f"not confirmed yet by {', '.join(sorted(total.pending))}: nobody is given those blocks any more; "
            "run the same again to see them gone"
        )
    if total.skipped or total.pending:
        raise typer.Exit(REFUSED)
    raise typer.Exit(OK if total.count or known else NOT_THERE)
