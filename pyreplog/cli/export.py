"""`pyreplog export`: the records of a log, or the messages of topics, as Parquet files."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pyreplog.cli.shared import sourceoptions
from pyreplog.cli.shared.output import amount, counted, duration, print_json, say
from pyreplog.cli.shared.reportprogress import steps
from pyreplog.reports.catalogue import require_pyarrow

NAME = "export"
HELP = "write the records of a log, or the messages of topics, to Parquet files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sourceoptions.add_arguments(parser)
    parser.add_argument(
        "--parquet", metavar="DIR", type=Path, required=True, help="where the files go; it must be empty, or not there"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is in there")
    parser.add_argument(
        "--columns", metavar="NAME,NAME", help="as of the Spark source (default: all but where it lies)"
    )


def run(arguments: argparse.Namespace) -> int:
    require_pyarrow()
    from pyreplog.reports.export import all_topics, export
    from pyreplog.tables.options import ReadOptions

    began, given = time.monotonic(), all_topics(sourceoptions.options(arguments))
    if arguments.columns is not None:
        given["columns"] = arguments.columns
    with steps(1) as shown:
        shown.begin("export")
        made = export(
            ReadOptions.of(given), arguments.parquet, overwrite=arguments.overwrite, workers=arguments.workers,
            progress=shown.update,
        )  # fmt: skip
        took = duration(time.monotonic() - began)
        shown.end(f"{counted(made.rows, 'row')} in {counted(len(made.files), 'file')}, {amount(made.bytes)}, {took}")
    if arguments.json:
        print_json({"files": [str(file) for file in made.files], "rows": made.rows, "bytes": made.bytes})
    else:
        say(f"{counted(made.rows, 'row')} in {counted(len(made.files), 'file')}, {amount(made.bytes)}")
    return 0
