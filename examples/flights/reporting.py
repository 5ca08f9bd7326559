"""The sixth step of the demo: a page of reports on the topic, while one of its bookies lacks its directory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from departuresbyhour import PLOT, DeparturesByHour
from topicservice import ARCHIVE, TOPIC
from verification import Mismatch

from pyreplog.reports import gathering, local_engine, suite
from pyreplog.reports.atomic_files import replacing
from pyreplog.reports.outcome import Outcome
from pyreplog.reports.page import plots as pageplots
from pyreplog.reports.page.page import About, page
from pyreplog.tables.options import ReadOptions

LOST = "bookie-2"


def report(directory: Path, rows: int) -> Iterator[str]:
    """All of it; yields what there is to say. rows: flights that there are. Mismatch: the reports say otherwise."""
    lost, aside = directory / "topic" / LOST, directory / f"{LOST}.aside"
    lost.rename(aside)
    yield f"Moved the directory of {LOST} aside, as if its disk were gone, and asked the topic for all reports."
    try:
        made = list(outcomes({"path": str(directory / "topic")}))
    finally:
        aside.rename(lost)
    check({one.report.name: one for one in made}, rows)
    about = About(
        "The flights of 2013, in a topic",
        [("as of", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())), ("source", str(directory / "topic"))],
        f"Made by the demo. The directory of {LOST} was away meanwhile.",
    )
    with replacing(directory / "report.html") as draft:
        draft.write_text(page(about, made), encoding="utf-8")
    yield (
        "The page of reports: which subscription lags and since when, departures by the hour, hot tail numbers, which "
        f"bookie lost copies.\n    file://{(directory / 'report.html').resolve()}"
    )


def outcomes(given: Mapping[str, str]) -> Iterator[Outcome]:
    """Of all reports there are, and of one of the demo's own."""
    gathered = gathering.gather(ReadOptions.of(given), time.time_ns() // 1000)
    yield from suite.outcomes(suite.chosen([]), given, gathered, local_engine.run)
    pageplots.PLOTS[DeparturesByHour.name] = (PLOT,)
    yield Outcome(DeparturesByHour, local_engine.run(DeparturesByHour(), {**given, "topics": TOPIC}, gathered))


def check(made: Mapping[str, Outcome], rows: int) -> None:
    failed = {name: one.error for name, one in made.items() if one.error}
    if failed:
        raise Mismatch(f"reports failed: {failed}")
    behind = {row["subscription"] for row in found(made, "backlog_by_subscription") if row["backlog_entries"]}
    lacking = {row["bookie"].partition("@")[0] for row in found(made, "replica_holes")}
    counts = [sum(row[of] for row in found(made, name)) for name, of in COUNTED]
    if behind != {ARCHIVE} or lacking != {LOST} or counts != [rows] * len(COUNTED):
        raise Mismatch(f"expected {rows:,} flights, {ARCHIVE} behind and copies lost by {LOST}, found {counts}, "
                       f"{behind} and {lacking}")  # fmt: skip


COUNTED = (("rate_by_minute", "entries"), ("departures_by_hour", "departures"))


def found(made: Mapping[str, Outcome], name: str) -> list[dict[str, object]]:
    table: pa.Table = made[name].table
    return list(table.to_pylist())
