"""`pyreplog export`: the records of a log, or the messages of topics, as Parquet files."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pyreplog.cli.shared import source_options
from pyreplog.cli.shared.output import amount, counted, duration, print_json, say
from pyreplog.cli.shared.report_progress import steps
from pyreplog.reports.catalogue import require_pyarrow

NAME = "export"
HELP = "write the records of a log, or the messages of topics, to Parquet files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source_options.add_arguments(parser)
    parser.add_argument(
        "--parquet", metavar="DIR", type=Path, required=True, help="directory of the files: new or empty"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the content of the directory")
    parser.add_argument(
        "--columns", metavar="NAME,NAME",
        help="columns of the Spark source (default: topic, partition, offset, timestamp, key, value, headers, "
        "producerName, sequenceId, publishTime, eventTime)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    require_pyarrow()
    from pyreplog.reports.export import all_topics, export
    from pyreplog.tables.options import ReadOptions

    began, source = time.monotonic(), all_topics(source_options.options(arguments))
    if arguments.columns is not None:
        source["columns"] = arguments.columns
    with steps(1) as shown:
        shown.begin("export")
        exported = export(
            ReadOptions.of(source), arguments.parquet, overwrite=arguments.overwrite, workers=arguments.workers,
            progress=shown.update,
        )  # fmt: skip
        elapsed = duration(time.monotonic() - began)
        files = counted(len(exported.files), "file")
        shown.end(f"{counted(exported.rows, 'row')} in {files}, {amount(exported.bytes)}, {elapsed}")
    if arguments.json:
        print_json({"files": [str(file) for file in exported.files], "rows": exported.rows, "bytes": exported.bytes})
    else:
        say(f"{counted(exported.rows, 'row')} in {counted(len(exported.files), 'file')}, {amount(exported.bytes)}")
    return 0
