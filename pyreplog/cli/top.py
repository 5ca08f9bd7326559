"""`pyreplog top`: topics, subscriptions, consumer groups, partitions, ledgers, bookies on the terminal, refreshed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pyreplog.cli.live import top_watch
from pyreplog.cli.live.top_screen import heading, tables
from pyreplog.cli.live.top_view import Frame
from pyreplog.cli.shared import targets
from pyreplog.cli.shared.output import print_json, say, shown
from pyreplog.cli.shared.tables import has_rich, print_tables
from pyreplog.errors import InvalidArgumentError, ReplogError

NAME = "top"
HELP = "show topics, subscriptions, consumer groups, partitions, ledgers, bookies, refreshed until Ctrl-C"

_INTERVAL_MAX_S = 86400
_CLEAR = "\x1b[H\x1b[2J"


class Screen(Protocol):
    def __call__(self, frame: Frame) -> None: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_arguments(parser)
    parser.add_argument(
        "--interval", metavar="S", type=float, default=2.0, help="seconds between refreshes (default: 2)"
    )
    parser.add_argument("--once", action="store_true", help="print them once, and end")


def run(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.interval <= _INTERVAL_MAX_S:
        raise InvalidArgumentError(f"--interval: expected 0 to {_INTERVAL_MAX_S} seconds, found {arguments.interval}")
    with top_watch.watching(arguments) as watch, _screen(arguments) as show:
        frame = watch.refresh()
        show(frame)
        while not arguments.once:
            time.sleep(arguments.interval)
            try:
                frame = watch.refresh()
            except ReplogError as error:  # the server may come back
                frame = frame.failed(str(error))
            show(frame)
    return 0


@contextmanager
def _screen(arguments: argparse.Namespace) -> Iterator[Screen]:
    if arguments.json:
        yield lambda frame: print_json(frame.to_dict())
    elif not arguments.once and has_rich():
        from rich.live import Live

        with Live(screen=True, auto_refresh=False) as live:
            yield lambda frame: live.update(_group(frame), refresh=True)
    else:
        between = "" if arguments.once else _CLEAR if sys.stdout.isatty() else "\n"
        yield lambda frame: _print(frame, between)


def _group(frame: Frame) -> Any:
    from rich.console import Group
    from rich.text import Text

    filled = [table.rich() for table in tables(frame) if table.rows]
    return Group(*(Text(shown(line)) for line in heading(frame)), *(part for table in filled for part in ("", table)))


def _print(frame: Frame, before: str) -> None:
    sys.stdout.write(before)
    say(*heading(frame), sep="\n")
    print_tables(tables(frame))
    sys.stdout.flush()
