"""The dashboard in a real Chromium: every page, keys, light and dark, a phone, actions, tokens."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from support.dashboard_pool import DashboardPool
from support.waiting import wait_until
from ui.conftest import Visit

from moonpool.master.ui.sessions import SESSION_S, SESSIONS_MAX, Sessions

pytestmark = pytest.mark.browser

PATHS = ("/ui/", "/ui/nodes", "/ui/keyspaces", "/ui/tenants", "/ui/explorer", "/ui/activity")
WAIT_MS = 60_000
CELLS = """(row) => [...row.children].map((cell) => {
    const box = cell.getBoundingClientRect();
    return [box.left, box.right, getComputedStyle(cell, '::before').content];
})"""


def see(page: Page, text: str) -> None:
    expect(page.get_by_text(text).first).to_be_visible(timeout=WAIT_MS)


def test_the_overview_shows_what_the_pool_holds_and_how_it_is_hit(visit: Visit) -> None:
    page = visit.open("/")
    assert page.url.endswith("/ui/")
    see(page, "Hit ratio in blocks")
    see(page, "of 64.0 MiB")
    expect(page.locator("canvas")).to_have_count(4, timeout=WAIT_MS)
    see(page, "ceiling")


def test_digits_open_the_pages(visit: Visit) -> None:
    page = visit.open("/ui/")
    see(page, "Hit ratio in blocks")
    for number, path in enumerate(PATHS, 1):
        page.keyboard.press(str(number))
        page.wait_for_url(f"**{path}", timeout=WAIT_MS)
        expect(page.locator("a.mp-here")).to_have_count(1, timeout=WAIT_MS)


def test_links_lead_to_the_dashboard_from_their_first_moment(visit: Visit) -> None:
    """A click or key may come as soon as a link is there."""
    visit.page.add_init_script("""
        window.seen = new Set();
        new MutationObserver(() => document.querySelectorAll('a.mp-link').forEach(
            (link) => window.seen.add(link.getAttribute('href')))).observe(document, {childList: true, subtree: true});
    """)
    page = visit.open("/ui/nodes")
    see(page, "live")
    assert page.evaluate("[...window.seen].sort()") == sorted(PATHS)


def test_nodes_show_their_pages_as_heat(visit: Visit) -> None:
    page = visit.open("/ui/nodes")
    see(page, "live")
    expect(page.locator(".mp-heat div").first).to_be_visible(timeout=WAIT_MS)
    assert "% full" in (page.locator(".mp-heat div").first.get_attribute("title") or "")


def test_a_prefix_tree_is_walked_to_where_each_rank_lies(visit: Visit) -> None:
    page = visit.open("/ui/keyspaces")
    row = page.get_by_text("tiny/model").first
    for patience_ms in (WAIT_MS / 4, WAIT_MS):  # a list that is drawn anew under the pointer takes no click
        row.click(timeout=WAIT_MS)
        with suppress(PlaywrightTimeout):
            page.wait_for_url("**/ui/explorer?keyspace=*", timeout=patience_ms)
            break
    else:
        raise AssertionError("two clicks on a keyspace led nowhere")
    page.get_by_text("from block 0").first.click(timeout=WAIT_MS)
    see(page, "blocks 0 to 5")
    expect(page.get_by_text("from block 6")).to_have_count(3, timeout=WAIT_MS)
    page.get_by_text("from block 6").first.click()
    see(page, "Block 10")
    see(page, "2 of 2 ranks")


def test_a_block_is_pinned_and_unpinned_and_deleted_after_a_question(
    visit: Visit, pool: DashboardPool
) -> None:
    chain = pool.fill()[0]
    page = visit.open("/ui/explorer")
    page.get_by_label("A block's hash or key").fill(chain[-1].hex())
    page.get_by_role("button", name="Find").click()
    see(page, "not pinned")
    page.get_by_role("button", name="Pin").click()
    expect(page.get_by_role("button", name="Unpin")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("button", name="Delete").click()
    see(page, "Delete block 10?")
    page.get_by_role("button", name="Cancel").click()
    assert pool.client.match(pool.keyspace, chain) == len(chain), "nothing goes before somebody agrees"
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("Also 1 that are in use or pinned").click()
    page.get_by_role("button", name="Do it").click()
    wait_until(lambda: pool.client.match(pool.keyspace, chain) == len(chain) - 1)
    chain = pool.fill()[1]
    page.get_by_label("A block's hash or key").fill(chain[-1].hex())
    page.get_by_role("button", name="Find").click()
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_role("button", name="Unpin").click()
    see(page, "not pinned")


def test_what_happened_is_listed(visit: Visit) -> None:
    page = visit.open("/ui/activity")
    see(page, "Events")
    see(page, "Calls over 100 ms")
    see(page, "96 tokens")
    page.locator(".mp-top a").first.click()
    page.wait_for_url("**/ui/explorer?*block=*", timeout=WAIT_MS)
    see(page, "Block 0")


def test_a_tenant_gets_a_quota(visit: Visit) -> None:
    page = visit.open("/ui/tenants")
    see(page, "no quota")
    page.get_by_role("button", name="Quota").click()
    page.get_by_label("Quota", exact=True).fill("much")
    page.get_by_role("button", name="Set").click()
    see(page, "much")
    for size, shown in (("10MB", "of 10.0 MiB"), ("0", "no quota")):
        page.get_by_role("button", name="Quota").click()
        page.get_by_label("Quota", exact=True).fill(size)
        page.get_by_role("button", name="Set").click()
        see(page, shown)
    page.get_by_label("Delete tenant").click()
    see(page, "Delete tenant default?")
    expect(page.get_by_role("button", name="Do it")).to_be_disabled(timeout=WAIT_MS)
    page.get_by_role("button", name="Cancel").click()


def test_a_table_is_cards_on_a_phone(pool: DashboardPool, browser: Browser) -> None:
    with browser.new_context(viewport={"width": 390, "height": 800}) as context:
        page = Visit(context.new_page(), pool.url).open("/ui/keyspaces")
        see(page, "tiny/model")
        row = page.locator(".mp-keyspaces tbody tr", has_text="tiny/model").first
        cells = row.evaluate(CELLS)  # at once: rows are made anew every few seconds
        assert all(0 <= left < right <= 390 for left, right, _ in cells)
        assert '"Hit ratio"' in [label for _, _, label in cells]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_and_asks_nobody_else(
    pool: DashboardPool, browser: Browser, scheme: str, width: int, tmp_path: Path
) -> None:
    with browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme) as context:  # type: ignore[arg-type]
        visit = Visit(context.new_page(), pool.url)
        for path in PATHS:
            page = visit.open(path)
            expect(page.locator("a.mp-here")).to_have_count(1, timeout=WAIT_MS)
            wider = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wider <= 0, f"{path} is {wider} pixels wider than the window"
        dark = page.evaluate("document.body.classList.contains('body--dark')")
        assert dark == (scheme == "dark")
        page.get_by_label("Light or dark").click()
        page.wait_for_function("(was) => document.body.classList.contains('body--dark') !== was", arg=dark)
        assert not visit.faults, visit.faults


def test_with_tokens_a_visitor_logs_in_first_and_readers_change_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    names = {"admin": "the-admins-token", "monitor": "the-monitors-token", "node": "the-nodes-own-token"}
    entries = [{"token": token, "tenant": "default", "role": role} for role, token in names.items()]
    tokens.write_text(
        json.dumps(
            {"tokens": [*entries, {"token": "an-engines-token", "tenant": "default", "role": "client"}]}
        )
    )
    tokens.chmod(0o600)
    with DashboardPool(f"--tokens-file={tokens}", node_token=names["node"], token="an-engines-token") as pool:
        pool.fill()
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(pool.url + "/ui/nodes", wait_until="load")
            see(page, "This pool asks for a token")
            for wrong in ("no such token", names["node"]):
                page.get_by_label("Token").fill(wrong)
                page.get_by_role("button", name="Log in").click()
                see(page, "This pool asks for a token")
            page.get_by_label("Token").fill(names["monitor"])
            page.get_by_role("button", name="Log in").click()
            see(page, "Hit ratio in blocks")
            page.goto(pool.url + "/ui/nodes", wait_until="load")
            page.get_by_role("button", name="Drain").click(timeout=WAIT_MS)
            page.get_by_role("button", name="Do it").click()
            see(page, "may change nothing here")
            assert names["monitor"] not in page.content()
            assert all(
                cookie["httpOnly"] for cookie in context.cookies() if cookie["name"] == "moonpool_session"
            )
            page.get_by_label("Log out").click()
            see(page, "This pool asks for a token")


def test_sessions_are_bounded_and_end() -> None:
    sessions = Sessions()
    first = sessions.open("a", 0.0)
    assert sessions.token(first, SESSION_S - 1) == "a"
    assert sessions.token(first, SESSION_S) == ""
    names = [sessions.open(str(n), 1.0) for n in range(SESSIONS_MAX)]
    assert sessions.token(first, 1.0) == ""
    sessions.close(names[-1])
    assert sessions.token(names[-1], 1.0) == ""
    assert sessions.token(names[-2], 1.0) == str(SESSIONS_MAX - 2)
    assert sessions.token(None, 1.0) == ""
