"""`pyreplog topic redrive`: send dead letters back to the topics that they come from."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyreplog._native.topic.messages import Message
from pyreplog.cli.shared import targets
from pyreplog.cli.shared.output import counted, print_json, say
from pyreplog.cli.topics import topic_publish
from pyreplog.topic.model.dead_letter import RedriveReport

_TERMINAL_S = 0.2
_FILE_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_topic_arguments(parser)
    parser.add_argument(
        "subscription", metavar="SUBSCRIPTION", help="subscription of the dead-letter topic whose messages are sent"
    )
    parser.add_argument(
        "--to", metavar="NAME", help="another topic for all of them (default: the topic that each comes from)"
    )
    parser.add_argument("--limit", metavar="N", type=int, help="most messages to send")
    topic_publish.add_properties(
        parser, "property that a dead letter must have, such as pyreplog.cause=nack; others stay"
    )
    parser.add_argument("--dry-run", action="store_true", help="send nothing, and show how many would be sent")


def run(arguments: argparse.Namespace) -> int:
    wanted = {name: value.encode() for name, value in topic_publish.properties(arguments).items()}
    with targets.topic(arguments) as topic, _progress() as update:
        report = topic.redrive(
            arguments.subscription,
            to=arguments.to,
            limit=arguments.limit,
            where=_having(wanted) if wanted else None,
            dry_run=arguments.dry_run,
            on_progress=update,
        )
    if arguments.json:
        print_json({**vars(report), "topics": dict(report.topics), "dry_run": arguments.dry_run})
        return 0
    outcome = "would be sent" if arguments.dry_run else "sent"
    for name, count in sorted(report.topics.items()):
        say(f"{counted(count, 'dead letter')} {outcome} to {name}")
    if not report.topics:
        say(f"0 dead letters {outcome}")
    if report.repeated:
        say(f"{counted(report.repeated, 'dead letter')} of these had been sent by an earlier run that was interrupted")
    if report.skipped:
        say(f"{counted(report.skipped, 'dead letter')} left: without these properties")
    if report.stranded:
        say(f"{counted(report.stranded, 'dead letter')} left: their topic is unknown or does not exist; use --to")
    return 0


def _having(wanted: dict[str, bytes]) -> Callable[[Message], bool]:
    def has(letter: Message) -> bool:
        return all(letter.properties.get(name) == value for name, value in wanted.items())

    return has


@contextmanager
def _progress() -> Iterator[Callable[[RedriveReport], None]]:
    """Show progress on standard error: an overwritten line on a terminal, otherwise a line every few seconds."""
    terminal = sys.stderr.isatty()
    every_s = _TERMINAL_S if terminal else _FILE_S
    next_s = time.monotonic() + every_s

    def update(report: RedriveReport) -> None:
        nonlocal next_s
        if time.monotonic() < next_s:
            return
        next_s = time.monotonic() + every_s
        line = f"{counted(report.sent, 'dead letter')} so far"
        sys.stderr.write(f"\r\x1b[K{line}" if terminal else f"{line}\n")
        sys.stderr.flush()

    try:
        yield update
    finally:
        if terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
