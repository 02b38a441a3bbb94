"""Keyspaces: who may share blocks with whom, what each holds and how it is hit."""

from __future__ import annotations

from nicegui.events import GenericEventArguments

from moonpool.master.ui.actions import delete
from moonpool.master.ui.api import Api, Document
from moonpool.master.ui.frame import count_text, hit_text
from moonpool.master.ui.refresh import every
from moonpool.master.ui.tables import Column, cards_table, show_rows
from moonpool.schemas.units import format_size

REFRESH_S = 5.0
KEYSPACES_MAX = 500

COLUMNS = (
    Column("name", "Model"),
    Column("tenant", "Tenant"),
    Column("kind", "Kind"),
    Column("ranks", "Ranks", "right"),
    Column("blocks", "Blocks", "right"),
    Column("size", "Size", "right"),
    Column("hit", "Hit ratio", "right"),
    Column("asked", "Asked for", "right"),
    Column("evicted", "Evicted", "right"),
    Column("pins", "Pins", "right"),
    Column("actions", "", "right"),
)


async def show(api: Api) -> None:
    """Fills the page."""
    table = cards_table("keyspaces", COLUMNS, "keyspace", empty="No engine has registered a keyspace yet.")
    table.add_slot(
        "body-cell-name",
        r"""<q-td :props="props"><a class="text-primary" :href="'explorer?keyspace=' + props.row.keyspace">{{ props.row.name }}</a>
        <div class="mp-mono" style="opacity:.6">{{ props.row.keyspace.slice(0, 12) }}</div></q-td>""",
    )
    table.add_slot(
        "body-cell-actions",
        r"""<q-td :props="props"><q-btn flat dense round icon="delete_sweep" size="sm"
        aria-label="Delete all" @click="$parent.$emit('clear', props.row)"><q-tooltip>Delete all its blocks</q-tooltip></q-btn></q-td>""",
    )

    async def refresh() -> None:
        show_rows(table, [_row(one) for one in await api.items("/keyspaces", limit=KEYSPACES_MAX)])

    async def clear(event: GenericEventArguments) -> None:
        row: Document = event.args
        if await delete(api, f"all of {row['name']}", {"keyspace": row["keyspace"]}, word="delete"):
            await refresh()

    table.on("clear", clear)
    await every(REFRESH_S, refresh)


def _row(one: Document) -> Document:
    asked = one["asked_blocks"]
    return {
        "keyspace": one["keyspace"],
        "name": one["name"] or "plain objects",
        "tenant": one["tenant"],
        "kind": one["kind"],
        "ranks": one["ranks"],
        "blocks": f"{one['blocks']:,}",
        "size": format_size(one["size_bytes"]) if one["size_bytes"] else "–",
        "hit": hit_text(one),
        "asked": count_text(asked),
        "evicted": count_text(one["evicted_blocks"]),
        "pins": one["pins"],
    }
