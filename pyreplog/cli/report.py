"""`pyreplog report`: a page of reports on a log or a cluster."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyreplog import __version__
from pyreplog.cli.shared import source_options
from pyreplog.cli.shared.output import counted, duration, moment, print_json, say
from pyreplog.cli.shared.report_progress import StepProgress, steps
from pyreplog.errors import InvalidArgumentError
from pyreplog.reports.catalogue import REPORTS, require_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

    from pyreplog.reports.outcome import Outcome
    from pyreplog.reports.report import Report
    from pyreplog.reports.snapshot import Snapshot
    from pyreplog.reports.suite import Engine

NAME = "report"
HELP = "make a page of reports on a log or a cluster: backlogs, rates, keys, copies"

EXIT_FAILED_REPORT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source_options.add_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the page: one HTML file")
    parser.add_argument(
        "--parquet", metavar="DIR", type=Path, help="directory for the rows of each report, as Parquet files"
    )
    parser.add_argument(
        "--only", metavar="REPORT", action="append", default=[], choices=tuple(REPORTS),
        help=f"a report; may be repeated (default: all that apply): {', '.join(REPORTS)}",
    )  # fmt: skip
    parser.add_argument(
        "--subscription", metavar="NAME", action="append", default=[], dest="subscriptions",
        help="report on this subscription or Kafka consumer group; may be repeated (default: all)",
    )  # fmt: skip
    parser.add_argument("--copy", metavar="DIR|URL", help="a copy of the source, for a report on how far it is behind")
    parser.add_argument(
        "--window",
        metavar="S",
        type=float,
        default=300.0,
        help="seconds over which current rates are measured (default: 300)",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help="engine that computes the reports (default: local)",
    )


def run(arguments: argparse.Namespace) -> int:
    require_pyarrow()
    from pyreplog.reports import gathering, suite
    from pyreplog.reports.page import page
    from pyreplog.tables.options import ReadOptions

    page.check_extra()
    _check_targets(arguments.output, arguments.parquet)
    began, as_of_us = time.monotonic(), time.time_ns() // 1000
    source, names = source_options.options(arguments), suite.chosen(arguments.only)
    snapshot = gathering.gather(ReadOptions.of(source), as_of_us, arguments.window)
    copy = None if arguments.copy is None else source_options.place(arguments, arguments.copy)
    with steps(len(names)) as shown:
        engine = _engine(arguments, shown)
        pending = suite.outcomes(names, source, snapshot, engine, arguments.subscriptions, copy)
        outcomes = _reported(pending, names, shown)
    about = page.About(
        f"Reports on {arguments.source}",
        [
            ("as of", f"{moment(as_of_us)[:19].replace('T', ' ')} UTC"),
            *_chosen(arguments),
            ("engine", arguments.engine),
            ("took", duration(time.monotonic() - began)),
        ],
        f"Made by pyreplog {__version__}. Times are UTC. Point at a figure for its exact value.",
    )
    _write(arguments, page.page(about, outcomes), outcomes)
    failed = [outcome.report.name for outcome in outcomes if outcome.error]
    if arguments.json:
        print_json(
            {"page": str(arguments.output), "reports": {outcome.report.name: _summary(outcome) for outcome in outcomes}}
        )
    else:
        say(arguments.output)
    return EXIT_FAILED_REPORT if failed else 0


def _check_targets(output: Path, parquet: Path | None) -> None:
    """Raise InvalidArgumentError if a target cannot be written, before anything is read."""
    if output.is_dir() or not output.parent.is_dir():
        found_text = "a directory" if output.is_dir() else f"no directory {output.parent}"
        raise InvalidArgumentError(f"--output {output}: expected a file in an existing directory, found {found_text}")
    if parquet is not None and parquet.exists() and not parquet.is_dir():
        raise InvalidArgumentError(f"--parquet {parquet}: expected a directory or a new path, found a file")


def _engine(arguments: argparse.Namespace, shown: StepProgress) -> Engine:
    from pyreplog.reports import local_engine, spark_engine

    if arguments.engine == "spark":
        # Spark's Python workers must be this interpreter: another one may not have pyreplog.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return partial(spark_engine.table, spark_engine.session())

    def engine(report: Report, source: Mapping[str, str], snapshot: Snapshot) -> pa.Table:
        return local_engine.run(
            report, source, snapshot, workers=arguments.workers,
            progress=lambda now: shown.update(now.done_bytes, now.bytes),
        )  # fmt: skip

    return engine


def _reported(outcomes: Iterator[Outcome], names: list[str], shown: StepProgress) -> list[Outcome]:
    """Return all outcomes; progress shows each of them as it comes."""
    collected: list[Outcome] = []
    for name in names:
        shown.begin(name)
        collected.append(next(outcomes))
        shown.end(_news(collected[-1]))
    return collected


def _news(outcome: Outcome) -> str:
    if outcome.table is None:
        return f"left out: {outcome.left_out}" if outcome.left_out else f"failed: {outcome.error}"
    return "; ".join((counted(len(outcome.table), "row"), *outcome.warnings))


def _chosen(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the selections that the user made."""
    chosen = {
        "topics": ", ".join(arguments.topics), "subscriptions": ", ".join(arguments.subscriptions),
        "since": arguments.since, "until": arguments.until,
    }  # fmt: skip
    return [(name, text) for name, text in chosen.items() if text]


def _write(arguments: argparse.Namespace, html: str, outcomes: list[Outcome]) -> None:
    from pyreplog.log.files import RealFiles
    from pyreplog.reports.atomic_files import replacing

    with replacing(arguments.output) as draft:
        draft.write_text(html, encoding="utf-8")
    if arguments.parquet is None:
        return
    from pyarrow import parquet

    RealFiles().make_directory(arguments.parquet, mode=0o777)
    for outcome in outcomes:
        if outcome.table is not None:
            with replacing(arguments.parquet / f"{outcome.report.name}.parquet") as draft:
                parquet.write_table(outcome.table, draft, compression="zstd")


def _summary(outcome: Outcome) -> dict[str, object]:
    summary: dict[str, object]
    if outcome.table is None:
        summary = {"left_out": outcome.left_out} if outcome.left_out else {"error": outcome.error}
    else:
        summary = {"rows": len(outcome.table)}
    return {**summary, "warnings": list(outcome.warnings)} if outcome.warnings else summary
