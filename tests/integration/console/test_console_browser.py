"""The console in a real Chromium: live updates, keyboard, themes, and the tree that screen readers use.

With TIDELOG_PICTURES=DIR, the tests write the pictures of docs/console.md to DIR.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerlab.console_users import MECHANISM, PASSWORDS, SecuredCluster
from brokerlab.secured_broker import ALICE, TOPIC, SecuredBroker
from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.cluster import Cluster as ClusterClient
from tidelog.model.fair_budget import FairBudget
from tidelog.model.topics import TopicPartition
from tidelog.testing import Cluster

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: make lab-setup", exc_type=ImportError
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]
Serve = Callable[..., Any]
PICTURES = os.environ.get("TIDELOG_PICTURES")
TIMEOUT_MS = 60_000
FOCUSED = "document.activeElement"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        # Chromium's sandbox needs a user other than root, and only the console's own pages are opened.
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Returns open_page(url, ...), which opens a page and later checks that nothing went wrong on it, but for
    what contains `expected`.
    """
    contexts: list[Any] = []
    faults: list[str] = []

    def open_one(url: str, *, expected: str | None = None, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        host = url.split("/")[2]
        page.on("pageerror", lambda error: faults.append(str(error)))

        def note(said: Any) -> None:
            if said.type == "error" and (expected is None or expected not in said.text):
                faults.append(said.text)

        page.on("console", note)
        page.on(
            "request", lambda asked: faults.append(asked.url) if asked.url.split("/")[2] != host else None
        )
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


def picture(page: Any, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("tokens"))
    yield broker
    broker.close()


@pytest.fixture
def flights(tidelog: Cluster) -> Cluster:
    """Returns a cluster with a topic of 60 records and a group that has read a part of it."""
    tidelog.create_topic("flights", 3, configs={"retention.ms": "7200000"})
    for partition in range(3):
        values = (
            b'{"flight": "TL%03d", "seat": {"row": %d, "class": "%s"}}'
            % (number, number % 30, b"economy" if number % 4 else b"business")
            for number in range(partition, 60, 3)
        )
        tidelog.produce("flights", *values, partition=partition)
    with ClusterClient(tidelog.bootstrap) as client:
        offsets = {TopicPartition("flights", index): CommittedOffset(5 * index) for index in range(3)}
        commit_offsets(client, "seat-map", offsets)
    return tidelog


def test_the_overview_follows_a_broker_that_dies(
    tidelog_cluster: Callable[..., Cluster], serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    cluster = tidelog_cluster(3)
    cluster.create_topic("flights", 6)
    console = serve_console(cluster.bootstrap, interval_ms=500)
    pages = [open_page(console.url, color_scheme=scheme) for scheme in ("light", "dark")]
    for page in pages:
        page.get_by_text("3 brokers").wait_for()
    cluster.kill_broker(2)
    for page, scheme in zip(pages, ("light", "dark"), strict=True):
        page.get_by_text("Broker 2 stopped.").wait_for()
        page.get_by_text("6 under-replicated").wait_for()
        picture(page, f"overview-{scheme}")
    cluster.start_broker(2)
    pages[0].get_by_text("Broker 2 started.").wait_for()


def test_a_search_and_a_group_can_be_used(
    flights: Cluster, serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    console = serve_console(flights.bootstrap, interval_ms=60_000)
    page = open_page(f"{console.url}/topics/flights/records")
    page.get_by_label("JSON value").fill("seat.class=business")
    page.get_by_label("Start at").select_option("oldest")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("15 records", exact=True).wait_for()
    picture(page, "records-light")
    page.get_by_role("link", name="0", exact=True).first.click()
    page.get_by_role("heading", name="Record 0 of flights, partition 0").wait_for()
    page = open_page(f"{console.url}/group?id=seat-map", color_scheme="dark")
    page.get_by_text("45 records of lag").wait_for()
    assert page.get_by_text(re.compile("at the earliest, by retention.ms")).count() == 3
    picture(page, "group-dark")


def test_everything_is_reached_with_the_keyboard(
    flights: Cluster, serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    console = serve_console(flights.bootstrap, interval_ms=200)
    page = open_page(console.url)
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate(f"{FOCUSED}.id") == "main"
    page.goto(f"{console.url}/topics")
    page.keyboard.press("/")
    assert page.evaluate(f"{FOCUSED}.id") == "search"
    page.keyboard.type("light")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?q=light*")
    reached: list[str] = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(f"{FOCUSED}.textContent.trim() || {FOCUSED}.name"))
        # The user sees where the focus is.
        assert page.evaluate(f"getComputedStyle({FOCUSED}).outlineStyle") != "none" or reached[-1] == ""
        if reached[-1] == "flights":
            break
    assert reached[-1] == "flights"
    for name in (
        "Overview",
        "Topics",
        "Groups",
        "Transactions",
        "Settings",
        "Theme: system",
        "Pause updates",
    ):
        assert name in reached
    # A live update must not take the focus away.
    before = page.locator("#read-at").text_content()
    page.wait_for_function("before => document.getElementById('read-at').textContent !== before", arg=before)
    assert page.evaluate(f"{FOCUSED}.textContent") == "flights"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Topic flights").wait_for()


def test_a_user_logs_in_and_out_with_the_keyboard(
    secured: SecuredCluster, serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    console = serve_console(secured.bootstrap, login=MECHANISM, interval_ms=200)
    page = open_page(f"{console.url}/topics?q=fl", expected="403 (Forbidden)")
    page.wait_for_url("**/login?next=*")
    assert page.evaluate(f"{FOCUSED}.id") == "user"
    page.keyboard.type("alice")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.id") == "password"
    page.keyboard.type("guessed")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert alert.text_content() == "The cluster does not accept this user name and password."
    # The name is kept, and the password is typed again.
    assert page.locator("#user").input_value() == "alice"
    assert page.evaluate(f"{FOCUSED}.id") == "password"
    assert page.locator("#password").input_value() == ""
    picture(page, "login-light")
    page.keyboard.type(PASSWORDS["alice"])
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.name") == "delegation"
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.textContent") == "Log in"
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?q=fl")
    page.get_by_role("link", name="flights").wait_for()
    assert page.get_by_role("link", name="salaries").count() == 0
    assert page.evaluate("document.cookie") == ""  # no script reads the session's cookie
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate(f"{FOCUSED}.textContent") == "Log out":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/login")
    page.goto(f"{console.url}/topics")
    page.wait_for_url("**/login?next=*")


def test_a_page_leads_to_the_login_when_its_session_ends(
    secured: SecuredCluster,
    serve_console: Serve,
    open_page: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.console.login.SWEEP_S", 0.1)
    monkeypatch.setattr("tidelog.console.core.sessions.IDLE_MS", 3_000)
    page = open_page(f"{serve_console(secured.bootstrap, login=MECHANISM).url}/topics")
    page.get_by_label("User name").fill("alice")
    page.get_by_label("Password").fill(PASSWORDS["alice"])
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="flights").wait_for()
    page.wait_for_url("**/login?next=%2Ftopics")
    page.get_by_label("Password").wait_for()


def test_screen_readers_find_the_fields_of_the_login(
    secured: SecuredCluster, serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    console = serve_console(secured.bootstrap, login=MECHANISM)
    tree = open_page(f"{console.url}/login").locator("body").aria_snapshot()
    for part in (
        '- heading "Log in"',
        '- textbox "User name"',
        '- textbox "Password"',
        '- checkbox "these are the id and the HMAC of a delegation token"',
        '- button "Log in"',
    ):
        assert part in tree, tree


def test_a_token_is_pasted_with_the_keyboard_or_sent_by_a_proxy(
    tokens: SecuredBroker, serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    console = serve_console(tokens.bootstrap("SASL_PLAINTEXT"), login="OAUTHBEARER", interval_ms=200)
    page = open_page(f"{console.url}/topics", expected="403 (Forbidden)")
    page.wait_for_url("**/login?next=*")
    assert page.evaluate(f"{FOCUSED}.id") == "token"
    assert '- textbox "Bearer token"' in page.locator("main").aria_snapshot()
    page.keyboard.insert_text(tokens.provider.token(ALICE, aud="other"))
    page.keyboard.press("Enter")
    page.get_by_text("The cluster does not accept this token.").wait_for()
    assert page.locator("#token").input_value() == ""
    picture(page, "login-token-light")
    token = tokens.provider.token(ALICE)
    page.keyboard.insert_text(token)
    page.keyboard.press("Enter")
    page.get_by_role("link", name=TOPIC).wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("heading", name="Log in").wait_for()
    page = open_page(f"{console.url}/topics", extra_http_headers={"Authorization": f"Bearer {token}"})
    page.get_by_role("link", name=TOPIC).wait_for()
    page.get_by_text(f"User {ALICE}", exact=True).wait_for()
    assert page.get_by_role("button", name="Log out").count() == 0
    read_at = page.locator("#read-at").text_content()
    page.wait_for_function("before => document.getElementById('read-at').textContent != before", arg=read_at)
    assert page.context.cookies() == []


def test_the_theme_can_be_chosen_and_is_kept(
    flights: Cluster, serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page = open_page(serve_console(flights.bootstrap).url, color_scheme="light")
    light = page.evaluate(background)
    for _ in range(2):
        page.locator("#theme").press("Enter")
    assert page.locator("#theme").text_content() == "Theme: dark"
    assert page.evaluate(background) != light
    page.reload()
    assert page.evaluate(background) != light


def test_updates_can_be_paused(flights: Cluster, serve_console: Serve, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{serve_console(flights.bootstrap, interval_ms=200).url}/topics")
    button = page.get_by_role("button", name="Pause updates")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    flights.create_topic("crews")
    with pytest.raises(playwright.TimeoutError):
        page.get_by_text("crews").wait_for(timeout=1_500)
    button.click()
    page.get_by_text("crews").wait_for()


def test_a_page_without_updates_says_so_until_they_come_again(
    flights: Cluster, serve_console: Serve, open_page: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FairBudget, "resize", lambda *_: False)
    console = serve_console(flights.bootstrap, interval_ms=200)
    page = open_page(f"{console.url}/topics", expected="503 (Service Unavailable)")
    state = page.get_by_role("status").filter(
        has_text="No updates arrive. This page shows what was read then."
    )
    state.wait_for()
    monkeypatch.undo()
    flights.create_topic("crews")
    page.get_by_text("crews").wait_for()
    state.wait_for(state="hidden")


@pytest.mark.parametrize(
    "path",
    ["/", "/topics", "/topics/flights", "/topics/flights/records", "/groups", "/group?id=seat-map",
     "/transactions", "/settings"],
)  # fmt: skip
def test_screen_readers_find_landmarks_names_and_tables(
    path: str, flights: Cluster, serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    page = open_page(serve_console(flights.bootstrap, interval_ms=60_000).url + path)
    tree = page.locator("body").aria_snapshot()
    for part in (
        "- banner:",
        '- navigation "Pages":',
        "- main:",
        '- heading "',
        "- contentinfo:",
        "- table ",
    ):
        assert part in tree, tree
    assert re.search(r'- table "[^"]+":', tree), tree
    assert "columnheader" in tree
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "checkbox", "combobox", "link", "searchbox", "textbox"}
    unnamed = [
        node
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in controls and not node["name"]["value"]
    ]
    assert unnamed == []
    if path == "/":
        assert '- img "The last hour"' in tree


def test_pages_work_without_scripts(
    flights: Cluster, serve_console: Serve, open_page: Callable[..., Any]
) -> None:
    page = open_page(f"{serve_console(flights.bootstrap).url}/topics?q=fl", java_script_enabled=False)
    page.get_by_role("link", name="flights").click()
    page.get_by_role("link", name="Records of flights").click()
    page.get_by_role("heading", name="Records of flights").wait_for()
    assert page.get_by_role("button", name="Theme").count() == 0
