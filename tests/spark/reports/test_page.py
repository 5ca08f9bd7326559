"""The page without a browser: its HTML, its sentences, its figures."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreplog.errors import MissingExtraError
from pyreplog.reports import suite
from pyreplog.reports.catalogue import REPORTS, report_class
from pyreplog.reports.outcome import Outcome
from pyreplog.reports.page import cells as pagecells
from pyreplog.reports.page.names import names as names_of
from pyreplog.reports.page.page import ROWS, check_extra
from pyreplog.reports.page.plots import PLOTS, plots
from pyreplog.reports.page.summary import ORDER, questions
from pyreplog.reports.snapshot import Snapshot
from tests.spark.reports.pages import NOON_US, SCRIPT, backlog, html, key, minute, outcome

VOID = {"meta", "img", "br", "link", "input"}
names = pytest.mark.parametrize("name", REPORTS)


class Strict(HTMLParser):
    """What a page holds; elements that are not closed in turn fail."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen = Counter[str]()
        self.attributes = Counter[str]()
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.attributes.update(name for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def findings_of(*outcomes: Outcome) -> dict[str, list[tuple[str, str]]]:
    """State and text of all findings, by the first words of their question."""
    actual_questions = questions({outcome.report.name: outcome for outcome in outcomes})
    return {
        question.title.split(",")[0].split("?")[0]: [(finding.state, finding.text) for finding in question.findings]
        for question in actual_questions
    }


# ---- escaping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SCRIPT, "</style></svg>", "a\0b\x1b\u202e\uffff", "$x_{", '" onerror="alert(1)'])
def test_names_are_text_whatever_is_in_them(name: str) -> None:
    rows = [key(name.encode(errors="replace"), 9, 1, 2, topic=name)], [backlog(name, 9, 5.0, topic=name)]
    text = html(
        outcome("key_skew", rows[0]),
        outcome("backlog_by_subscription", rows[1]),
        Outcome(report_class("log_gaps"), error=name),
        Outcome(report_class("duplicates"), left_out=name),
    )
    page = Strict(text)
    plain = Strict(html(outcome("key_skew", [key(b"k", 9, 1, 2)]), outcome("backlog_by_subscription", rows[1][:0])))
    assert page.seen["script"] == plain.seen["script"] == 1
    assert page.seen["img"] == 0
    assert "onerror" not in page.attributes
    assert "\0" not in text


def test_messages_that_were_published_here_have_a_name() -> None:
    columns = {"topic": ["t", "t"], "partition": [-1, -1], "cluster": [None, "ab"]}
    assert names_of(pa.table(columns), tuple(columns)) == ["(published here)", "ab"]


def test_page_escapes_hostile_names() -> None:
    page = Strict(html(outcome("key_skew", [key(SCRIPT.encode(), 9, 1, 2, topic=SCRIPT)])))
    assert sum(SCRIPT in text for text in page.texts) >= 3, "in the summary, the drawing, and the table"


# ---- the summary -----------------------------------------------------------------------------------------------


def test_subscription_with_the_oldest_backlog_is_listed_first() -> None:
    rows = [backlog("young", 9000, 100.0), backlog("none", 0), backlog("old", 3, 7200.0)]
    answer = findings_of(outcome("backlog_by_subscription", rows))["Which subscription or consumer group lags"]
    assert [state for state, _ in answer] == ["bad", "bad", "fine"]
    assert answer[0][1].startswith("“old” of orders lags by 3 messages (300 B)")
    assert answer[0][1].endswith(f"since {pagecells.moment(NOON_US)} UTC, 2 h.")
    assert "“none” of orders" in answer[2][1]


def test_many_that_lag_are_counted() -> None:
    actual_text = findings_of(outcome("backlog_by_subscription", [backlog(f"s{n}", 9, 60.0 * n) for n in range(1, 12)]))
    texts = [text for _, text in actual_text["Which subscription or consumer group lags"]]
    assert [text[1:4] for text in texts[:5]] == ["s11", "s10", "s9”", "s8”", "s7”"]
    assert texts[5] == "6 more subscriptions lag."


@pytest.mark.parametrize(("age_s", "state"), [(0.5, "fine"), (59.9, "fine"), (60.0, "bad"), (None, "unknown")])
def test_a_backlog_is_bad_when_it_is_old(age_s: float | None, state: str) -> None:
    row = {**backlog("billing", 3, age_s or 0.0), "age_s": age_s}
    if age_s is None:
        row["oldest_ts"] = None
    assert (
        findings_of(outcome("backlog_by_subscription", [row]))["Which subscription or consumer group lags"][0][0]
        == state
    )


def test_unknown_results_are_shown_as_unknown() -> None:
    lost = {"ledger_id": 7, "first_entry": 0, "last_entry": 9, "entries": 10, "expected": 3, "found": 1, "unknown": 2}
    away = {"ledger_id": 7, "bookie": "b@1", "first_missing": 0, "last_missing": 9, "missing": 10, "status": "unknown"}
    waiting = {"topic": "t", "partition": -1, "subscription": "s", "backlog_entries": 5}
    text = findings_of(
        outcome("under_replicated", [{**lost, "lost": False, "below_ack": False}]),
        outcome("replica_holes", [away]),
        outcome("drain_estimate", [waiting]),
        Outcome(report_class("log_gaps"), error="OSError: gone"),
    )
    assert {state for state, _ in text["Which bookie lost copies"]} == {"unknown"}
    assert {state for state, _ in text["Which subscription or consumer group lags"]} == {"unknown"}
    assert text["Is anything damaged"] == [("unknown", "Offsets that are missing: the report failed. OSError: gone")]
    assert text["What is hot"] == [("unknown", "No report that answers this was run.")]


def test_reports_that_compared_nothing_are_shown_as_unknown() -> None:
    """All bookies were away: nothing was compared, and nothing checked."""
    away = {"ledger_id": 7, "first_entry": 0, "last_entry": 9, "entries": 10, "expected": 3, "found": 0, "unknown": 3}
    unchecked = {"bookie": "b@1", "records": 0, "bad_records": 0, "bytes_checked": 0, "complete": False}
    text = findings_of(
        outcome("replica_divergence", []),
        outcome("under_replicated", [{**away, "lost": False, "below_ack": False}]),
        outcome("crc_audit", [unchecked]),
    )
    states = {state for question in ("Which bookie lost copies", "Is anything damaged") for state, _ in text[question]}
    assert states == {"unknown"}
    whole = findings_of(outcome("replica_divergence", []), outcome("under_replicated", []))
    assert {state for state, _ in whole["Which bookie lost copies"]} == {"fine"}


def test_a_bookie_that_lost_copies_is_named() -> None:
    hole = {"ledger_id": 7, "bookie": "bookie-2", "first_missing": 0, "last_missing": 9, "missing": 6}
    text = findings_of(
        outcome(
            "replica_holes",
            [{**hole, "status": "missing"}, {**hole, "ledger_id": 8, "missing": 1000, "status": "missing"}],
        )
    )
    assert text["Which bookie lost copies"] == [
        ("bad", "Bookie bookie-2 lacks 1,006 copies of 2 ledgers that it should have.")
    ]


def test_reports_without_a_subject_are_shown_as_not_applicable() -> None:
    text = findings_of(Outcome(report_class("replica_holes"), left_out="there are no ledgers here"))
    assert text["Which bookie lost copies"] == [("n/a", "There are no ledgers here.")]
    left_out = Outcome(report_class("dead_subscriptions"), left_out="there are no topics here")
    new_text = findings_of(left_out, outcome("retention_forecast", []))
    assert new_text["Which subscription or consumer group lags"] == [("n/a", "There are no topics here.")], (
        "and no empty answer"
    )


def test_a_key_is_hot_by_how_much_it_has_beside_the_mean() -> None:
    """Of 1,000 records 100 have the hot key, 99 one of 99 others, 801 none: the mean key has 1.99 records."""
    hot, even = key(b"N1", 100, 1, 100), key(b"N2", 90, 1, 100, topic="even")
    text = findings_of(outcome("key_skew", [hot, even, {**key(b"", 801, 2, 100), "rank": None, "key": None}]))
    assert [state for state, _ in text["What is hot"]] == ["hot", "fine"]
    assert (
        text["What is hot"][0][1]
        == "Key “N1” of orders has 10 % of the records, 50.3 times those of the mean of 100 keys."
    )


# ---- every report ----------------------------------------------------------------------------------------------


@names
def test_every_report_has_its_place_and_its_drawing_its_columns(name: str) -> None:
    assert name in ORDER
    columns = {figure.name for figure in report_class(name).figures}
    for plot in PLOTS.get(name, ()):
        assert {*plot.columns} <= columns


@names
def test_an_empty_report_is_a_page(name: str) -> None:
    page = Strict(html(outcome(name, [])))
    assert any("No rows." in text for text in page.texts)


def test_a_page_draws_no_chart_of_zeros() -> None:
    page = Strict(html(outcome("backlog_by_subscription", [backlog("a", 0), backlog("b", 0)])))
    assert page.seen["figure"] == 0
    assert page.seen["tr"] == 3


def test_every_plot_belongs_to_a_report() -> None:
    assert PLOTS.keys() <= REPORTS.keys()


def test_every_figure_has_its_definition() -> None:
    report, text = report_class("rate_by_minute"), html(outcome("rate_by_minute", [minute(0, 5)]))
    page = Strict(text)
    assert any(report.definition in each_text for each_text in page.texts)
    for figure in report.figures:
        assert page.texts.count(figure.meaning) >= 1


def test_page_shows_the_first_rows_of_a_long_report_and_counts_the_others() -> None:
    text = html(outcome("rate_by_minute", [minute(n, 1) for n in range(ROWS + 7)]))
    assert text.count("<tr>") == ROWS + 1
    assert f"The first {ROWS:,} of {ROWS + 7:,} rows." in text


# ---- drawings --------------------------------------------------------------------------------------------------


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 5000), st.integers(1, 999), st.sampled_from("abcdefghi")), min_size=1, max_size=40
    ),
)
@settings(max_examples=4, deadline=None)
def test_bars_over_time_hold_all_there_is(rows: list[tuple[int, int, str]]) -> None:
    actual_outcome = outcome("rate_by_minute", [minute(*row) for row in rows])
    entries = plots(actual_outcome.report, actual_outcome.table)[0]
    bars = re.findall(r"<title>.*: ([\d,]+)</title>", entries)
    assert sum(int(bar.replace(",", "")) for bar in bars) == sum(count for _, count, _ in rows)


def test_bars_by_rank_are_the_largest() -> None:
    actual_outcome = outcome("key_skew", [key(b"k%d" % n, n, n, 99) for n in range(1, 60)])
    told = re.findall(r"<title>(.*): ([\d,]+)</title>", plots(actual_outcome.report, actual_outcome.table)[0])
    assert told == [(f"k{n}", str(n)) for n in range(59, 39, -1)]


# ---- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12.3 ms"), (5.0, "5 s"), (59.99, "60 s"), (61.0, "1 min 1 s"), (7200.0, "2 h"), (90_000.0, "1 d 1 h")],
)
def test_durations_on_a_page_have_fitting_units(seconds: float, text: str) -> None:
    assert pagecells.duration(seconds) == text


def test_keys_are_text_where_they_are_one() -> None:
    shown = [pagecells.key_text(key) for key in (b"N1".hex(), b"\xff\x00".hex(), "", "\u00e9".encode().hex())]
    assert shown == ["N1", "ff00", "(empty)", "\u00e9"]


def test_numbers_have_their_units_and_the_exact_value_at_hand() -> None:
    figures = {figure.name: figure for figure in report_class("rate_by_minute").figures}
    assert pagecells.cells(figures["bytes"], [1536, None])[0] == ("1.5 KiB", "1,536 bytes", 1536)
    assert pagecells.cells(figures["bytes"], [None])[0].order is None
    assert pagecells.cells(figures["minute"], [NOON_US])[0].text == pagecells.moment(NOON_US)


# ---- running them ----------------------------------------------------------------------------------------------


def test_failed_report_does_not_stop_other_reports(tmp_path: Path) -> None:
    def engine(report: object, options: object, snapshot: object) -> object:
        if type(report).__name__ == "LogGaps":
            raise ValueError("broken")
        return report_class("rate_by_minute").schema().empty_table()

    outcomes = list(suite.outcomes(["log_gaps", "rate_by_minute"], {"path": "x"}, Snapshot(as_of_us=0), engine))
    assert [item.error for item in outcomes] == ["ValueError: broken", ""]
    assert outcomes[0].table is None


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_missing_library_raises_missing_extra_error_with_pip_advice(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyreplog\[report\]'"):
        check_extra()
