"""`pyreplog offload`: sealed segments of a log, on object storage."""

from __future__ import annotations

import argparse

import pyreplog
from pyreplog.cli.shared.output import amount, counted, print_json, say
from pyreplog.cli.shared.progress import progress

NAME = "offload"
HELP = "copy what is sealed of a log, live or not, to object storage, from where Spark and reports read it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="directory of the log; a writer may have it open")
    parser.add_argument(
        "url", metavar="URL", help="s3://bucket/prefix, file:///directory; credentials come from the environment"
    )
    parser.add_argument(
        "--sizes-only",
        action="store_true",
        help="of what is there already, compare sizes only: do not read it to compare checksums",
    )


def run(arguments: argparse.Namespace) -> int:
    from pyreplog.offload.copying import offload

    with pyreplog.open(arguments.source, "r") as log:
        total = log.end_position - log.start_position
    with progress("offload", start=0, total=total) as shown:
        made = offload(arguments.source, arguments.url, verify=not arguments.sizes_only, progress=shown.update)
    found = made.manifest
    if arguments.json:
        print_json({
            "url": arguments.url, "uuid": found.uuid, "generation": found.generation, "start": found.start,
            "end": found.end, "segments": len(found.segments), "bytes": found.length, "copied_segments": made.segments,
            "copied_bytes": made.bytes, "replaced_segments": made.replaced,
        })  # fmt: skip
    else:
        say(f"{counted(made.segments, 'segment')} copied, {amount(made.bytes)}")
        say(
            f"{counted(len(found.segments), 'segment')}, entries {found.start:,} to before {found.end:,}, "
            f"{amount(found.length)} in {arguments.url}"
        )
    return 0
