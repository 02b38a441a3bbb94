"""Lists of a whole cluster: what every master says, as one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Generic

from pydantic import ConfigDict

from moonpool.master.rest.others import UNANSWERED, Model, Parts, Unanswered, with_own
from moonpool.master.rest.paging import Item, Page, page_of
from moonpool.master.rest.rows import Block


class ClusterPage(Page[Item], Generic[Item]):
    """A piece of a list of the whole cluster."""

    model_config = ConfigDict(json_schema_extra={"description": "A piece of a list of the whole cluster."})

    unanswered: list[Unanswered] = UNANSWERED


def one_each(
    items: Iterable[Model], key: Callable[[Model], str], better: Callable[[Model], float]
) -> list[Model]:
    """By key, of those with the same the one of which `better` is greatest."""
    best: dict[str, Model] = {}
    for item in items:
        known = best.setdefault(key(item), item)
        if better(item) > better(known):
            best[key(item)] = item
    return [best[name] for name in sorted(best)]


def merged_page(
    pages: Iterable[Page[Model]], unanswered: list[Unanswered], key: Callable[[Model], str], limit: int
) -> ClusterPage[Model]:
    """One page of the masters' own pages behind the same cursor, each sorted by `key`, which is the cursor too."""
    pages = list(pages)
    items = one_each((item for page in pages for item in page.items), key, lambda _: 0.0)
    more = len(items) > limit or any(page.next_cursor is not None for page in pages)
    items = items[:limit]
    return ClusterPage(
        items=items, next_cursor=key(items[-1]) if more and items else None, unanswered=unanswered
    )


async def blocks_of_all(
    own: Awaitable[Page[Block]], others: Awaitable[Parts[ClusterPage[Block]]], limit: int
) -> ClusterPage[Block]:
    """A page of the whole cluster's blocks. Of one that changes its master just now both tell: once is enough."""
    mine, found = await with_own(own, others)
    pages = [*([mine] if mine else []), *found.found]
    page = merged_page(pages, found.unanswered, lambda block: block.cursor, limit)
    page.items = list({block.key: block for block in page.items}.values())
    return page


def cluster_page(
    items: list[Item],
    unanswered: list[Unanswered],
    key: Callable[[Item], str],
    cursor: str | None,
    limit: int,
) -> ClusterPage[Item]:
    """See page_of. `unanswered`: masters whose items are missing."""
    page = page_of(items, key, cursor, limit)
    return ClusterPage(items=page.items, next_cursor=page.next_cursor, unanswered=unanswered)
