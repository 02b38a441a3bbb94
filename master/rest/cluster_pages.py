"""Lists of a whole cluster: what every master says, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic

from pydantic import ConfigDict

from moonpool.master.rest.others import UNANSWERED, Model, Unanswered
from moonpool.master.rest.paging import Item, Page, page_of


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
