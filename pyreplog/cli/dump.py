"""`pyreplog dump`: explain the bytes of a record or of a segment header, even if it is damaged."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyreplog.cli.explaining import layout, raw_segment
from pyreplog.cli.explaining.explain import explain_header, explain_record
from pyreplog.cli.explaining.explained import Explained
from pyreplog.cli.explaining.raw_segment import RawSegment
from pyreplog.cli.shared.output import print_json, say
from pyreplog.errors import CorruptionError, OutOfRangeError
from pyreplog.log import recovery
from pyreplog.log.opening import as_directory

NAME = "dump"
HELP = "explain the bytes of a record or of a segment header, even if it is damaged"

_SHOWN_BYTES = 16
_JSON_BYTES = 256
_VERDICTS = {True: "ok", False: "BAD", None: ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="directory of the log")
    selection = parser.add_mutually_exclusive_group(required=True)
    selection.add_argument(
        "--position", metavar="P", type=int, help="the record at a position (bytes from the beginning of the log)"
    )
    selection.add_argument("--entry", metavar="N", type=int, help="the record of an entry")
    selection.add_argument(
        "--segment", metavar="BASE", type=int, help="the header of the segment that begins at a position"
    )


def run(arguments: argparse.Namespace) -> int:
    recovery.check_directory(directory := as_directory(arguments.log))
    if arguments.segment is not None:
        segment, offset = raw_segment.at_base(directory, arguments.segment), 0
        lines = explain_header(segment)
    else:
        segment, offset = _place(directory, arguments)
        lines = explain_record(segment, offset)
    if arguments.json:
        print_json(_json(segment, offset, lines))
    else:
        _print(segment, offset, lines)
    return CorruptionError.exit_code if any(line.ok is False for line in lines) else 0


def _place(directory: Path, arguments: argparse.Namespace) -> tuple[RawSegment, int]:
    """Return segment and offset of the record that the arguments select."""
    if arguments.entry is not None:
        return raw_segment.of_entry(directory, arguments.entry)
    segment, offset = raw_segment.at_position(directory, arguments.position)
    if not layout.SEGMENT_HEADER <= offset <= segment.size - layout.SHORT_HEADER or offset % 8:
        raise OutOfRangeError(
            f"no record begins at position {arguments.position}: those of {segment.path} begin at multiples of 8 from "
            f"position {segment.base + layout.SEGMENT_HEADER} to {segment.base + segment.size - layout.SHORT_HEADER}"
        )
    return segment, offset


def _json(segment: RawSegment, offset: int, lines: list[Explained]) -> dict[str, object]:
    return {
        "file": str(segment.path), "what": "record" if offset else "segment header",
        "position": segment.base + offset, "intact": all(line.ok is not False for line in lines),
        "fields": [
            {
                "name": line.name, "offset": line.offset, "length": len(line.data),
                "bytes": line.data[:_JSON_BYTES].hex(), "meaning": line.meaning, "ok": line.ok,
            }
            for line in lines
        ],
    }  # fmt: skip


def _print(segment: RawSegment, offset: int, lines: list[Explained]) -> None:
    subject = "record" if offset else "segment header"
    say(f"{subject} at position {segment.base + offset}, byte {offset} of {segment.path}")
    say(f"{'offset':>10}  {'bytes':<{3 * _SHOWN_BYTES}}  {'field':<15} {'':<3}  meaning")
    for line in lines:
        shown = line.data[:_SHOWN_BYTES].hex(" ") + (" ..." if len(line.data) > _SHOWN_BYTES else "")
        say(f"{line.offset:>10}  {shown:<{3 * _SHOWN_BYTES}}  {line.name:<15} {_VERDICTS[line.ok]:<3}  {line.meaning}")
