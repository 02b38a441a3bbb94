"""The dashboard of a pool with two masters, one of which stops answering."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from support.guarded import TOKENS
from support.rest_cluster import Cluster

pytestmark = [pytest.mark.browser, pytest.mark.etcd]


def test_a_master_that_does_not_answer_is_named(browser: Browser, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path, dashboard=True)
        page = stack.enter_context(browser.new_context(ignore_https_errors=True)).new_page()
        page.goto(f"{cluster.pages[0]}/ui/", wait_until="load")
        page.get_by_label("Token").fill(TOKENS["admin"])
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("Hit ratio in blocks")).to_be_visible(timeout=60_000)
        warning = page.get_by_text(f"master {cluster.masters[1].address} has not answered")
        expect(warning).to_have_count(0)
        cluster.masters[1].freeze()
        try:
            expect(warning).to_be_visible(timeout=90_000)
        finally:
            cluster.masters[1].thaw()
