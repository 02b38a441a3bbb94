"""Tables that become cards on a phone: every cell with its column's name, nothing to scroll sideways for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nicegui import ui

from moonpool.master.ui.api import Document

PHONE_PX = 640


class Column(NamedTuple):
    """Of a table. `label`: empty where the cells speak for themselves."""

    name: str
    label: str
    align: str = "left"


def cards_table(
    name: str, columns: Sequence[Column], row_key: str, *, title: str = "", rows: int = 25, empty: str
) -> ui.table:
    """`name`: of its CSS class. `rows`: of a page. `empty`: what it says where there is none."""
    ui.add_css(_css(name, columns))
    table = ui.table(
        rows=[],
        columns=[
            {
                "name": column.name,
                "label": column.label,
                "field": column.name,
                "align": column.align,
                "sortable": bool(column.label),
            }
            for column in columns
        ],
        title=title or None,
        row_key=row_key,
        pagination={"rowsPerPage": rows},
    )
    table.classes(f"w-full mp-cards mp-{name}")
    table.props(f'flat wrap-cells hide-pagination no-data-label="{empty}" :rows-per-page-options="[{rows}]"')
    return table


def show_rows(table: ui.table, rows: list[Document]) -> None:
    """New rows. What leafs through them is there where there is something to leaf through."""
    if len(rows) > table.pagination["rowsPerPage"]:
        table.props(remove="hide-pagination")
    else:
        table.props("hide-pagination")
    table.update_rows(rows)


def _css(name: str, columns: Sequence[Column]) -> str:
    labels = "".join(
        f'.mp-{name} tbody td:nth-child({number})::before {{ content: "{column.label}"; }}'
        for number, column in enumerate(columns, 1)
        if column.label
    )
    return f"@media (max-width: {PHONE_PX}px) {{ {labels} }}"
