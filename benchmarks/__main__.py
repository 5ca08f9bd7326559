"""`python -m benchmarks`: measure rows of the goals and print both sides of each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import machine, report
from benchmarks.limits.build import ROOT
from benchmarks.plan import FULL_BYTES, Plan
from benchmarks.rows.registry import BOUNDS, ROWS, measure

_DATA = ROOT / "build" / "bench-data"
_APART = "## Measured apart"
"""Heading of what no row measures. It is the last section of the file that --markdown writes, and stays as it is."""


def main() -> None:
    """Parse the command line and run."""
    options = _parser().parse_args()
    plan = Plan(
        directory=options.directory, budget=options.budget, full=options.full, rocketmq=options.rocketmq,
        kafka=options.kafka,
    )  # fmt: skip
    found = machine.describe(plan.directory)
    pages = [report.header(found)]
    sections = []
    if not options.json:
        print(pages[0], flush=True)
    for name in options.only or (BOUNDS if options.bounds else ROWS | BOUNDS):
        section = measure(name, plan)
        sections.append(report.data(section))
        pages.append(report.markdown(section))
        if not options.json:
            print(f"\n{pages[-1]}", flush=True)
    if options.json:
        print(json.dumps({"machine": found, "sections": sections}, indent=1))
    if options.markdown is not None:
        options.markdown.write_text("\n\n".join([*pages, *_measured_apart(options.markdown)]) + "\n")


def _measured_apart(page: Path) -> list[str]:
    """Return the section of the page that was written by hand, if there is one."""
    _, heading, text = page.read_text().partition(f"{_APART}\n") if page.exists() else ("", "", "")
    return [(heading + text).rstrip("\n")] if heading else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--budget", type=float, default=10.0, metavar="SECONDS", help="about so long per row (default 10)")
    add("--only", action="append", choices=[*ROWS, *BOUNDS], help="only this row; may be given again")
    add("--bounds", action="store_true", help="only what bounds the goals that are not met")
    add(
        "--full",
        action="store_true",
        help=f"write {FULL_BYTES >> 30} GiB per line of the tail-latency row; whole backlogs, topics, hops",
    )
    add("--rocketmq", action="store_true", help="RocketMQ's store beside the stream of ha-stream (Maven fetches it)")
    add("--kafka", action="store_true", help="MirrorMaker 2 beside geo-replication (Maven fetches it)")
    add("--json", action="store_true", help="print JSON in place of tables")
    add("--markdown", type=Path, metavar="FILE", help="write the tables to a file, too")
    add("--directory", type=Path, default=_DATA, help="where logs are written: its file system counts")
    return parser


if __name__ == "__main__":
    main()
