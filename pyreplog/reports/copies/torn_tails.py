"""Torn tails: bytes of unfinished records that a crash left after the end of a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyreplog.log import names
from pyreplog.log.fsck import survey
from pyreplog.log.lock import writer_of
from pyreplog.tables.logs import take_snapshot
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import bookie_logs, bookie_of, cluster_of, log_directories, names_of, offloaded_urls


class TornTail(NamedTuple):
    """The torn tail of a log.

    Attributes:
        topic: name of the log; None: the log of a bookie.
        segment: name of the file.
        size: bytes that the next writer will cut.
    """

    topic: str | None
    bookie: str | None
    segment: str
    size: int


def torn_tails(options: ReadOptions) -> Iterator[TornTail]:
    """Yield the torn tails of the logs that paths name. A log with a running writer has none.

    Raises NotALogError if a path holds no log, and CorruptionError or FormatVersionError if a log cannot be read.
    """
    if options.cluster is not None:
        return
    folder = cluster_of(options.paths)
    directories = log_directories(options.paths) if folder is None else [*bookie_logs(folder).values()]
    log_names = names_of(directories, offloaded_urls(options.paths))
    for directory in directories:
        state = survey.take(directory, writer=writer_of(directory))
        end, size = state.extent.position, state.identity[1]
        if state.extent.torn and end is not None:
            topic = log_names[str(directory)] if take_snapshot(directory).numbered else None
            segment = names.segment_path(directory, end // size * size).name
            yield TornTail(topic, bookie_of(directory), segment, state.extent.torn)
