"""What crashes left behind the ends of logs: the beginning of records that were never finished."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyreplog.log import names
from pyreplog.log.fsck import survey
from pyreplog.log.lock import writer_of
from pyreplog.tables.logs import look
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import bookie_logs, bookie_of, cluster_of, log_directories, names_of, offloaded_urls


class TornTail(NamedTuple):
    """topic: name of the log; None: it is a bookie's. segment: file. size: bytes that its next writer will cut."""

    topic: str | None
    bookie: str | None
    segment: str
    size: int


def torn_tails(options: ReadOptions) -> Iterator[TornTail]:
    """Of all logs that options name by paths. A log that is being written has none: its writer has cut it.

    Errors: NotALogError, CorruptionError, FormatVersionError.
    """
    if options.cluster is not None:
        return
    folder = cluster_of(options.paths)
    directories = log_directories(options.paths) if folder is None else [*bookie_logs(folder).values()]
    called = names_of(directories, offloaded_urls(options.paths))
    for directory in directories:
        found = survey.take(directory, writer=writer_of(directory))
        end, size = found.extent.position, found.identity[1]
        if found.extent.torn and end is not None:
            topic = called[str(directory)] if look(directory).numbered else None
            segment = names.segment_path(directory, end // size * size).name
            yield TornTail(topic, bookie_of(directory), segment, found.extent.torn)
