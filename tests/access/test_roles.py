"""Roles: one table names every request, and says what each role may send."""

from __future__ import annotations

from typing import get_args

import pytest

from moonpool.schemas import messages as m
from moonpool.schemas.access import ALLOWED, Identity, Role

REQUESTS = {
    request
    for union in (m.MasterRequest, m.NodeRequest, m.LaneRequest)
    for request in get_args(union)
    if request is not m.Hello
}


def test_the_table_names_every_request_and_nothing_else() -> None:
    assert ALLOWED.keys() == REQUESTS


@pytest.mark.parametrize("request_type", sorted(REQUESTS, key=lambda kind: kind.__name__))
def test_an_admin_may_send_everything(request_type: type[m.Message]) -> None:
    assert Identity("any", Role.ADMIN).may(request_type)


CHANGING = {
    m.PutStart,
    m.PutAbandon,
    m.Remove,
    m.Clear,
    m.Pin,
    m.Unpin,
    m.ReportBad,
    m.Begin,
    m.PutSmall,
    m.PutAhead,
    m.LaneWrite,
}
OF_NODES = {m.Announce, m.Report, m.Heartbeat, m.Need}


def test_readers_change_nothing_and_only_nodes_report() -> None:
    def may(role: Role) -> set[type[m.Message]]:
        return {request for request in REQUESTS if Identity("t", role).may(request)}

    assert not may(Role.READER) & (CHANGING | OF_NODES)
    assert may(Role.CLIENT) >= CHANGING
    assert not may(Role.CLIENT) & OF_NODES
    assert may(Role.NODE) >= OF_NODES
    assert not may(Role.NODE) & CHANGING
    assert may(Role.MONITOR) == {m.GetClusterMap, m.GetStatus, m.ListTenants, m.GetDrains}


def test_a_request_that_the_table_does_not_know_is_for_admins() -> None:
    assert Identity("t", Role.ADMIN).may(m.Welcome)
    assert not any(Identity("t", role).may(m.Welcome) for role in Role if role is not Role.ADMIN)


def test_engines_see_their_own_tenant_alone() -> None:
    for role in Role:
        foreign = role not in (Role.READER, Role.CLIENT)
        assert Identity("red", role).sees("red")
        assert Identity("red", role).sees("blue") is foreign
