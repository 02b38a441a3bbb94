"""Quotas in a real pool: at its quota a tenant loses its own oldest blocks, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.guarded import TOKENS
from support.processes import MasterProcess, NodeProcess
from typer.testing import CliRunner

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import Forbidden
from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient
from moonpool.store_client.cli.main import app
from moonpool.store_client.objects import hashes_of
from moonpool.store_client.rpc.credentials import Credentials

QUOTA = 1 << 20
SIZE = 50_000


@pytest.fixture(scope="module")
def clients(tokens_file: Path) -> Iterator[dict[str, StoreClient]]:
    with (
        MasterProcess(["--tokens-file", str(tokens_file), "--quotas", "green=5MB"]) as master,
        NodeProcess(master, tokens_file=tokens_file, token=TOKENS["node"], begin_wait_s=5) as node,
    ):
        node.credentials = Credentials(TOKENS["admin"])
        node.wait_for("master_connected", 1)
        made = {
            name: StoreClient(
                ClientSettings(
                    master=master.address,
                    run_dir=node.run_dir,
                    token=TOKENS[name],
                    tenant=name,
                    transport="tcp",
                    timeout_s=30,
                )
            )
            for name in ("red", "blue", "admin")
        }
        try:
            yield made
        finally:
            for client in made.values():
                client.close()


def keys(tenant: str, count: int, first: int = 0) -> list[str]:
    return [f"{tenant} {n}" for n in range(first, first + count)]


def test_a_tenant_at_its_quota_loses_its_own_blocks(clients: dict[str, StoreClient]) -> None:
    red, blue, admin = clients["red"], clients["blue"], clients["admin"]
    assert admin.admin.set_quota("red", QUOTA)
    assert not admin.admin.set_quota("red", QUOTA)
    theirs = keys("blue", 40)
    assert set(blue.batch_put(theirs, [b"b" * SIZE] * 40)) == {Status.OK}
    for key in keys("red", 60):
        assert red.put(key, b"r" * SIZE) is Status.OK
        assert int(red.status()["used_bytes"]) <= QUOTA
    there = red.batch_is_exist(keys("red", 60))
    assert there[-1] and not there[0], "the oldest went"
    assert 15 <= sum(there) <= QUOTA // SIZE
    assert all(blue.batch_is_exist(theirs))
    assert red.status()["quota_bytes"] == QUOTA
    assert blue.status()["quota_bytes"] == 0 and int(blue.status()["used_bytes"]) >= 40 * SIZE


def test_who_has_nothing_to_give_up_is_told_so(clients: dict[str, StoreClient]) -> None:
    red, admin = clients["red"], clients["admin"]
    admin.admin.set_quota("red", QUOTA)
    keyspace = next(spec for spec in red.list_keyspaces() if spec.name == "objects").digest()
    held, statuses = [], []
    for key in keys("red", 40, 1000):
        statuses.append(red.put(key, b"r" * SIZE))
        if statuses[-1] is Status.OK and red.pin(keyspace, hashes_of([key])):
            held.append(key)
    assert statuses[0] is Status.OK and statuses[-1] is Status.QUOTA
    assert set(statuses) == {Status.OK, Status.QUOTA}
    assert all(red.batch_is_exist(held)) and len(held) <= QUOTA // SIZE
    red.unpin(keyspace, hashes_of(held))
    assert admin.admin.set_quota("red", 0)
    assert red.put("without a quota", b"r" * SIZE) is Status.OK


def test_tenants_are_for_admins(clients: dict[str, StoreClient]) -> None:
    for call in (
        lambda: clients["red"].admin.tenants(),
        lambda: clients["red"].admin.set_quota("red", 1 << 40),
    ):
        with pytest.raises(Forbidden, match="role client"):
            call()
    found = {one.tenant: one for one in clients["admin"].admin.tenants()}
    assert found["green"].quota_bytes == 5 << 20
    assert found["green"].keyspaces == 0


def test_the_command(clients: dict[str, StoreClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_MASTER", clients["admin"].settings.master)
    monkeypatch.setenv("MOONPOOL_TOKEN", TOKENS["admin"])
    run = CliRunner()
    said = run.invoke(app, ["tenant", "set", "green", "--quota", "7MB", "--json"])
    assert json.loads(said.stdout) == {"tenant": "green", "quota_bytes": 7 << 20, "changed": True}
    listed = json.loads(run.invoke(app, ["tenant", "list", "--json"]).stdout)
    assert {one["tenant"]: one["quota_bytes"] for one in listed}["green"] == 7 << 20
    assert "7.0 MiB" in run.invoke(app, ["tenant", "list"]).stdout
    assert run.invoke(app, ["tenant", "set", "green", "--quota", "much"]).exception is not None


def test_a_tenant_is_removed_on_the_command_line(clients: dict[str, StoreClient]) -> None:
    red, admin = clients["red"], clients["admin"]
    admin.admin.set_quota("red", QUOTA)
    assert red.put("some", b"r" * SIZE) is Status.OK
    options = ["--master", red.settings.master, "--set", f"token={TOKENS['admin']}", "--json"]

    def run(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["tenant", "rm", *arguments, *options])
        return found.exit_code, found.stdout

    code, dry = run("red", "--dry-run", "--force")
    assert code == 0 and json.loads(dry)["removed"] > 0
    assert red.batch_is_exist(["some"]) == [True]
    code, said = run("red", "--yes", "--force")
    assert code == 0 and json.loads(said)["removed"] == json.loads(dry)["removed"]
    assert red.batch_is_exist(["some"]) == [False] and red.status()["quota_bytes"] == 0
    assert run("nobody", "--yes")[0] != 0
