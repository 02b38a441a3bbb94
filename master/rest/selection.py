"""What an operator means: blocks by key, prefix, keyspace, tenant, request or session."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moonpool.master.chained import ChainedTable
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.rows import SHORT_FORM, describe_all, find, tables_of
from moonpool.master.table import Table
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import InvalidParams, NotFound

KEYS_MAX = 1000
WAYS = ("keys", "prefix", "keyspace", "tenant", "request_id", "session_id")


class Selection(BaseModel):
    """Blocks: exactly one of the fields says which."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"keyspace": "00" * 16}, {"request_id": "cmpl-17"}]}
    )

    keys: list[str] | None = Field(None, min_length=1, max_length=KEYS_MAX, description=SHORT_FORM)
    prefix: str | None = Field(
        None, max_length=4096, description=f"a key: the block and all before it in its run ({SHORT_FORM})"
    )
    keyspace: str | None = Field(None, max_length=64, description="all of a keyspace, by its digest")
    tenant: str | None = Field(None, min_length=1, max_length=128, description="all of a tenant")
    request_id: str | None = Field(
        None, min_length=1, max_length=256, description="what a request has written, as its engine named it"
    )
    session_id: str | None = Field(
        None, min_length=1, max_length=256, description="what requests of a session have written"
    )

    @model_validator(mode="after")
    def one_way(self) -> Self:
        """Raises ValueError where none or several are given."""
        given = [name for name in WAYS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(WAYS)}")
        return self


class Selected(BaseModel):
    """Blocks by keyspace: whole tables, or some hashes."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    tables: list[tuple[int, Table]] = []
    hashes: dict[bytes, list[bytes]] = {}
    """By keyspace."""


def select(parts: MasterParts, identity: Identity, selection: Selection) -> Selected:
    """What is meant, as the index is now. Raises NotFound, KeyspaceUnknown, InvalidKey."""
    if selection.keyspace is not None:
        return Selected(tables=tables_of(parts, identity, selection.keyspace))
    if selection.tenant is not None:
        found = [
            (shard, table)
            for shard, table in parts.core.look.tables()
            if table.spec.tenant == selection.tenant
        ]
        if not found or not identity.sees(selection.tenant):
            raise NotFound(key=f"tenant {selection.tenant}")
        return Selected(tables=found)
    if selection.prefix is not None:
        return Selected(hashes=_prefix(parts, identity, selection.prefix))
    if selection.keys is not None:
        hashes: dict[bytes, list[bytes]] = {}
        for block in describe_all(parts, identity, selection.keys):
            hashes.setdefault(bytes.fromhex(block.keyspace), []).append(bytes.fromhex(block.hash))
        if not hashes:
            raise NotFound(key="none of the keys")
        return Selected(hashes=hashes)
    kind = "request" if selection.request_id is not None else "session"
    name = selection.request_id or selection.session_id or ""
    tagged = parts.core.tags.find(kind, name, identity.sees)
    if not tagged:
        raise NotFound(key=f"{kind} {name}")
    return Selected(hashes=tagged)


def _prefix(parts: MasterParts, identity: Identity, key: str) -> dict[bytes, list[bytes]]:
    _, table, row = find(parts, identity, key)
    if not isinstance(table, ChainedTable):
        raise InvalidParams(field="prefix", value=key[:200], allowed="keys of chained keyspaces")
    rows = table.ancestors(row, table.positions[row] + 1).tolist()
    return {table.keyspace: [table.hashes[above] for above in rows if table.hashes[above]]}
