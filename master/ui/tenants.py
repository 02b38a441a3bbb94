"""Tenants: what each stores, and may."""

from __future__ import annotations

from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from moonpool.master.ui.actions import confirm
from moonpool.master.ui.api import Api, Document, Refusal
from moonpool.master.ui.frame import count_text, hit_text
from moonpool.master.ui.refresh import every
from moonpool.master.ui.tables import Column, cards_table, show_rows
from moonpool.schemas.units import format_size, parse_size

REFRESH_S = 5.0
TENANTS_MAX = 500

COLUMNS = (
    Column("tenant", "Tenant"),
    Column("used", "Used of its quota"),
    Column("keyspaces", "Keyspaces", "right"),
    Column("blocks", "Blocks", "right"),
    Column("hit", "Hit ratio", "right"),
    Column("asked", "Asked for", "right"),
    Column("pins", "Pins", "right"),
    Column("actions", "", "right"),
)


async def show(api: Api) -> None:
    """Fills the page."""
    table = cards_table("tenants", COLUMNS, "tenant", empty="No engine has registered a keyspace yet.")
    table.add_slot(
        "body-cell-used",
        r"""<q-td :props="props"><div class="mp-cell">{{ props.row.used }}
        <q-linear-progress v-if="props.row.quota_bytes" :value="Math.min(1, props.row.share)" size="6px" rounded
        :color="props.row.share > 0.95 ? 'warning' : 'primary'" style="max-width: 260px; margin-top: 4px" /></div></q-td>""",
    )
    table.add_slot(
        "body-cell-actions",
        r"""<q-td :props="props"><q-btn flat dense no-caps size="sm" label="Quota"
        @click="$parent.$emit('quota', props.row)" /><q-btn flat dense round icon="delete_sweep" size="sm"
        aria-label="Delete tenant" @click="$parent.$emit('remove', props.row)"><q-tooltip>Delete all its blocks and its
        quota</q-tooltip></q-btn></q-td>""",
    )

    async def refresh() -> None:
        show_rows(table, [_row(one) for one in await api.items("/tenants", limit=TENANTS_MAX)])

    async def quota(event: GenericEventArguments) -> None:
        if await set_quota(api, event.args):
            await refresh()

    async def remove(event: GenericEventArguments) -> None:
        if await delete_tenant(api, event.args["tenant"]):
            await refresh()

    table.on("quota", quota)
    table.on("remove", remove)
    await every(REFRESH_S, refresh)


def _row(one: Document) -> Document:
    quota_bytes, used = one["quota_bytes"], format_size(one["used_bytes"])
    return {
        "tenant": one["tenant"],
        "used": f"{used} of {format_size(quota_bytes)}" if quota_bytes else f"{used}, no quota",
        "quota_bytes": quota_bytes,
        "share": one["used_bytes"] / quota_bytes if quota_bytes else 0.0,
        "keyspaces": one["keyspaces"],
        "blocks": f"{one['blocks']:,}",
        "hit": hit_text(one),
        "asked": count_text(one["asked_blocks"]),
        "pins": one["pins"],
    }


async def set_quota(api: Api, row: Document) -> bool:
    """Asks for a size, and sets it. Whether it was done."""
    before = format_size(row["quota_bytes"]).replace(" ", "") if row["quota_bytes"] else "0"
    with ui.dialog() as dialog, ui.card().classes("mp-card").style("min-width: 320px"):
        ui.label(f"What may {row['tenant']} store?").classes("font-semibold")
        ui.label("For example 10GB; 0: as much as there is room for.").classes("mp-note")
        size = ui.input("Quota", value=before).props("dense outlined autofocus").classes("w-full")
        with ui.row().classes("w-full justify-end gap-2"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Set", on_click=lambda: dialog.submit(size.value)).props("no-caps unelevated")
    text = await dialog
    dialog.delete()
    if text is None:
        return False
    try:
        quota_bytes = parse_size(text)
    except ValueError as error:
        ui.notify(str(error), type="negative")
        return False
    return await _ask(api, "PUT", row["tenant"], json={"quota_bytes": quota_bytes}) is not None


async def delete_tenant(api: Api, tenant: str) -> bool:
    """Deletes a tenant once the visitor has seen how much would go, and agreed. Whether it was done."""
    would = await _ask(api, "DELETE", tenant, params={"dry_run": True})
    if would is None:
        return False
    consequence = f"{would['count']:,} blocks go, and its quota."
    more = f"Also {would['skipped']:,} that are in use or pinned" if would["skipped"] else ""
    force = await confirm(f"Delete tenant {tenant}?", consequence, "delete", more)
    if force is None:
        return False
    done = await _ask(api, "DELETE", tenant, params={"force": force})
    if done is not None:
        ui.notify(f"Done: {done['count']:,} blocks", type="positive")
    return done is not None


async def _ask(api: Api, method: str, tenant: str, **arguments: Any) -> Document | None:
    try:
        return await api.tenant(method, tenant, **arguments)
    except Refusal as refusal:
        ui.notify(str(refusal), type="negative", multi_line=True)
        return None
