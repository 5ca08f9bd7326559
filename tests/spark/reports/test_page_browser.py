"""The page in a real browser, without network: what a reader sees and can do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import ConsoleMessage, Error, Page, sync_playwright

from pyreplog.reports.catalogue import report_class
from pyreplog.reports.outcome import Outcome
from tests.spark.reports.pages import SCRIPT, backlog, html, key, minute, outcome

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 120_000


class Seen:
    """A page in a browser, what it asked for, and what the browser complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", self._error)
        page.on("request", lambda request: self.requests.append(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        self.errors.append(message.text)

    def _error(self, error: Error) -> None:
        self.errors.append(str(error))

    def column(self, report: str, name: str) -> list[str]:
        """The cells of a column, from above."""
        section = self.page.locator(f"section#{report}")
        heading = section.locator("th", has=self.page.get_by_role("button", name=name, exact=True))
        place = heading.evaluate("heading => heading.cellIndex + 1")
        return section.locator(f"tbody td:nth-child({place})").all_inner_texts()

    def sort(self, report: str, name: str) -> None:
        self.page.locator(f"section#{report}").get_by_role("button", name=name, exact=True).click()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(
        html(
            outcome(
                "backlog_by_subscription",
                [backlog("archive", 9, 5.0), backlog(SCRIPT, 1200, 90_000.0, topic=SCRIPT), backlog("board", 0)],
            ),
            outcome("key_skew", [key(SCRIPT.encode(), 400, 1, 100), key(b"quiet", 2, 2, 100)]),
            outcome("rate_by_minute", [minute(n, n % 7 + 1, topic) for n in range(300) for topic in (SCRIPT, "b")]),
            Outcome(report_class("log_gaps"), error=f"CorruptionError: {SCRIPT}"),
            Outcome(report_class("replica_holes"), left_out="there are no ledgers here"),
        )
    )
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert browser is not None, f"none of {', '.join(BROWSERS)} is installed: see .ci/system-packages"
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=browser, timeout=PATIENCE_MS) as chromium,
    ):
        page = chromium.new_page(offline=True, color_scheme="light")
        page.set_default_timeout(PATIENCE_MS)
        seen = Seen(page)
        page.goto(path.as_uri())
        yield seen


def test_page_opens_without_network_and_without_console_errors(seen: Seen) -> None:
    assert seen.errors == []
    assert len(seen.requests) == 1, f"one file holds all: {seen.requests}"
    assert seen.page.title() == "Reports on a test", "a script in a name ran"
    assert seen.page.locator("img").count() == 0


def test_summary_shows_lagging_subscriptions_with_size_and_age(seen: Seen) -> None:
    first = seen.page.locator("#summary .findings").first.locator("li").all_inner_texts()
    assert f"“{SCRIPT[:120]}" in first[0]
    for told in ("lags by 1,200 messages", "117.2 KiB", "since 2026-05-28", "1 d 1 h"):
        assert told in first[0]
    assert "archive" in first[1]
    assert "Without a backlog: “board” of orders." in first[2]


def test_a_click_on_a_heading_sorts_by_the_exact_value(seen: Seen) -> None:
    assert seen.column("backlog_by_subscription", "backlog_entries") == ["9", "1,200", "0"]
    seen.sort("backlog_by_subscription", "backlog_entries")
    assert seen.column("backlog_by_subscription", "backlog_entries") == ["1,200", "9", "0"]
    seen.sort("backlog_by_subscription", "backlog_entries")
    assert seen.column("backlog_by_subscription", "backlog_entries") == ["0", "9", "1,200"]
    seen.sort("backlog_by_subscription", "age_s")
    assert seen.column("backlog_by_subscription", "age_s") == ["1 d 1 h", "5 s", "-"], "nothing is last"
    seen.sort("backlog_by_subscription", "age_s")
    assert seen.column("backlog_by_subscription", "age_s") == ["5 s", "1 d 1 h", "-"], "nothing is last either way"
    sorted_by = seen.page.locator("#backlog_by_subscription th[aria-sort]").all_inner_texts()
    assert len(sorted_by) == 1, "one heading says that it orders"


def test_drawings_are_seen_in_the_colours_of_the_page(seen: Seen) -> None:
    bar = seen.page.locator("#key_skew figure svg [id$=bar0] path").first
    assert bar.evaluate("bar => bar.getBoundingClientRect().width") > 100
    light = bar.evaluate("bar => getComputedStyle(bar).fill")
    text = seen.page.locator("#key_skew figure svg text").first
    ink = text.evaluate("text => getComputedStyle(text).fill")
    seen.page.emulate_media(color_scheme="dark")
    assert bar.evaluate("bar => getComputedStyle(bar).fill") != light
    assert text.evaluate("text => getComputedStyle(text).fill") != ink
    seen.page.emulate_media(color_scheme="light")


def test_every_link_leads_to_something(seen: Seen) -> None:
    dead = seen.page.evaluate(
        "Array.from(document.querySelectorAll('a[href^=\"#\"]')).map(a => a.getAttribute('href').slice(1))"
        ".filter(id => !document.getElementById(id))"
    )
    assert dead == []
    twice = seen.page.evaluate(
        "(all => all.filter((id, place) => all.indexOf(id) != place))"
        "(Array.from(document.querySelectorAll('[id]')).map(one => one.id))"
    )
    assert twice == [], "ids that are there twice"


def test_table_wider_than_the_page_shows_a_scroll_hint(seen: Seen) -> None:
    hint = seen.page.locator("#backlog_by_subscription .hint")
    try:
        seen.page.set_viewport_size({"width": 400, "height": 800})
        hint.wait_for(state="visible")
        assert "scroll it sideways to see all" in hint.inner_text()
        seen.page.set_viewport_size({"width": 4000, "height": 800})
        seen.page.evaluate("document.body.style.maxWidth = 'none'")
        seen.page.set_viewport_size({"width": 3999, "height": 800})
        hint.wait_for(state="hidden")
    finally:
        seen.page.evaluate("document.body.style.maxWidth = ''")
        seen.page.set_viewport_size({"width": 1280, "height": 720})
