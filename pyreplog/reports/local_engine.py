"""Reports without Spark: planned in this process, read in threads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from pyreplog.reports.parameters import reads_of
from pyreplog.reports.partials import partial_of, read_options, tagged
from pyreplog.reports.report import Report, ReportRead
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.logslices import Part
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.planning import plan


class ReportProgress(NamedTuple):
    """How far a report is: tasks done, of how many; bytes of log that those had, of how many, about."""

    done: int
    tasks: int
    done_bytes: int
    bytes: int


class Job(NamedTuple):
    """What one task reads of a report."""

    read: ReportRead
    task: tuple[Part, ...]
    options: ReadOptions

    @property
    def size(self) -> int:
        """Bytes of log, about."""
        return sum(part.size for part in self.task)


def run(
    report: Report,
    given: Mapping[str, str],
    snapshot: Snapshot,
    *,
    workers: int = 2,
    progress: Callable[[ReportProgress], None] | None = None,
) -> pa.Table:
    """A report of what these options (those of the Spark source) mean. progress: told in this thread after each task.

    Errors: ConfigError; those of planning and reading.
    """
    report = report.at(snapshot)
    with ThreadPoolExecutor(workers) as pool:

        def partials(report: Report) -> pa.Table:
            jobs = [
                job
                for one, options in reads_of(report, given, snapshot)
                for job in _jobs(report, one, options, workers)
            ]
            found = [*_done(pool, report, jobs, progress)]
            return pa.concat_tables(found) if found else report.parts.empty_table()

        found = partials(report)
        second = report.second(found)
        return report.merge(found, snapshot) if second is None else second.merge(partials(second), snapshot)


def _jobs(report: Report, one: ReportRead, given: Mapping[str, str], workers: int) -> list[Job]:
    options = read_options(report, ReadOptions.of(given))
    options = replace(options, min_partitions=max(options.min_partitions, workers))
    return [Job(one, task, options) for task in plan(options)] or [Job(one, (), options)]


def _done(
    pool: ThreadPoolExecutor, report: Report, jobs: list[Job], progress: Callable[[ReportProgress], None] | None
) -> Iterator[pa.Table]:
    """What each job found, in the order in which they end."""
    running = {pool.submit(partial_of, report, job.task, job.options): job for job in jobs}
    sizes, done, size = sum(job.size for job in jobs), 0, 0
    try:
        for future in as_completed(running):
            job = running[future]
            yield tagged(future.result(), job.read.tag)
            done, size = done + 1, size + job.size
            if progress is not None:
                progress(ReportProgress(done, len(jobs), size, sizes))
    finally:
        for future in running:
            future.cancel()
