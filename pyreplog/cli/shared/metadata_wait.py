"""Starting a server while its metadata store does not answer, for it is restarted, or overloaded.

The start of a server may be repeated, as after a kill -9 in the middle of it. So also a write whose outcome is unknown
is no reason to end.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from pyreplog.cli.shared import serving
from pyreplog.errors import (
    KeyExistsError,
    LeaseLostError,
    MetadataAccessError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    ReplogError,
    VersionConflictError,
)

logger = logging.getLogger(__name__)

WAIT_S = 60.0
PAUSE_S = 1.0

_OVERTAKEN = (KeyExistsError, VersionConflictError)
"""A write of an earlier attempt was carried out later than the next attempt read."""

_TEMPORARY = (MetadataUnavailableError, OutcomeUnknownError, LeaseLostError, *_OVERTAKEN)

T = TypeVar("T")


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metadata-wait-s",
        metavar="S",
        type=serving.seconds,
        default=WAIT_S,
        help=f"seconds to try again while the metadata store does not answer at the start (default {WAIT_S:g})",
    )


@contextmanager
def started(
    arguments: argparse.Namespace, stop: serving.Stop, start: Callable[[], AbstractContextManager[T]]
) -> Iterator[T]:
    """Enter what `start` returns; start again for `--metadata-wait-s` seconds while the metadata store does not answer.

    Yields what was entered. stop: ends the waiting.

    Raises:
        SystemExit: `stop` was set; with exit code 0.
        MetadataUnavailableError: the store did not answer in time.
        OutcomeUnknownError: the same, and whether the last write was carried out is unknown.
        MetadataAccessError: the store denies access; it is not asked again.
        ReplogError: any other error of the start, at once.
    """
    with ExitStack() as stack:
        deadline = time.monotonic() + arguments.metadata_wait_s
        while True:
            try:
                entered = stack.enter_context(start())
            except MetadataAccessError:
                raise
            except _TEMPORARY as error:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise _given_up(error, arguments.metadata_wait_s) from error
                logger.warning("not started yet, for another %.0f s it is tried again: %s", left_s, error)
                if stop.wait(min(PAUSE_S, left_s)):
                    raise SystemExit(0) from error
            else:
                break
        yield entered


def _given_up(error: ReplogError, wait_s: float) -> ReplogError:
    kind = OutcomeUnknownError if isinstance(error, OutcomeUnknownError) else MetadataUnavailableError
    return kind(
        f"not started in {wait_s:g} s (--metadata-wait-s): {error}. Check that the servers of the metadata store run "
        "and can be reached from here, and that its URL has their hosts and ports; then start again"
    )
