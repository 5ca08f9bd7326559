"""`pyreplog offload`: copy sealed segments of a log to object storage."""

from __future__ import annotations

import argparse

import pyreplog
from pyreplog.cli.shared.output import amount, counted, print_json, say
from pyreplog.cli.shared.progress import progress

NAME = "offload"
HELP = "copy the sealed segments of a log, open or not, to object storage, where Spark and reports read them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="directory of the log; a writer may have it open")
    parser.add_argument(
        "url", metavar="URL", help="s3://bucket/prefix, file:///directory; credentials come from the environment"
    )
    parser.add_argument(
        "--sizes-only",
        action="store_true",
        help="compare only the sizes of existing objects, without reading them to compare checksums",
    )


def run(arguments: argparse.Namespace) -> int:
    from pyreplog.offload.copying import offload

    with pyreplog.open(arguments.source, "r") as log:
        total = log.end_position - log.start_position
    with progress("offload", start=0, total=total) as shown:
        copied = offload(arguments.source, arguments.url, verify=not arguments.sizes_only, progress=shown.update)
    manifest = copied.manifest
    if arguments.json:
        print_json({
            "url": arguments.url, "uuid": manifest.uuid, "generation": manifest.generation, "start": manifest.start,
            "end": manifest.end, "segments": len(manifest.segments), "bytes": manifest.length,
            "copied_segments": copied.segments, "copied_bytes": copied.bytes, "replaced_segments": copied.replaced,
        })  # fmt: skip
    else:
        say(f"{counted(copied.segments, 'segment')} copied, {amount(copied.bytes)}")
        say(
            f"{counted(len(manifest.segments), 'segment')}, entries {manifest.start:,} to before {manifest.end:,}, "
            f"{amount(manifest.length)} in {arguments.url}"
        )
    return 0
