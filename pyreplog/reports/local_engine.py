"""Runs reports without Spark: this process plans them, and its threads read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from pyreplog.errors import InvalidArgumentError
from pyreplog.reports.parameters import reads_of
from pyreplog.reports.partials import partial_of, read_options, tagged
from pyreplog.reports.report import Report, ReportRead
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.log_slices import Part
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.planning import plan


class ReportProgress(NamedTuple):
    """Progress of a report: tasks done, tasks in all; approximate bytes of log done, and in all."""

    done: int
    tasks: int
    done_bytes: int
    bytes: int


class Job(NamedTuple):
    """One task of one read of a report."""

    read: ReportRead
    task: tuple[Part, ...]
    options: ReadOptions

    @property
    def size(self) -> int:
        """Approximate bytes of log."""
        return sum(part.size for part in self.task)


def run(
    report: Report,
    source: Mapping[str, str],
    snapshot: Snapshot,
    *,
    workers: int = 2,
    progress: Callable[[ReportProgress], None] | None = None,
) -> pa.Table:
    """Run a report on a source. The parameters are those of `pyreplog.reports.run`; `source` has text options.

    Raises InvalidArgumentError, ConfigError, and the errors of planning and reading.
    """
    check_workers(workers)
    report = report.at(snapshot)
    with ThreadPoolExecutor(workers) as pool:

        def partials(report: Report) -> pa.Table:
            jobs = [
                job
                for read, options in reads_of(report, source, snapshot)
                for job in _jobs(report, read, options, workers)
            ]
            tables = [*_done(pool, report, jobs, progress)]
            return pa.concat_tables(tables) if tables else report.parts.empty_table()

        first = partials(report)
        second = report.second(first)
        return report.merge(first, snapshot) if second is None else second.merge(partials(second), snapshot)


def check_workers(workers: int) -> None:
    """Raise InvalidArgumentError unless the number of threads is 1 or more."""
    if workers < 1:
        raise InvalidArgumentError(f"workers: expected 1 or more threads, found {workers}")


def _jobs(report: Report, read: ReportRead, source: Mapping[str, str], workers: int) -> list[Job]:
    options = read_options(report, ReadOptions.of(source))
    options = replace(options, min_partitions=max(options.min_partitions, workers))
    return [Job(read, task, options) for task in plan(options)] or [Job(read, (), options)]


def _done(
    pool: ThreadPoolExecutor, report: Report, jobs: list[Job], progress: Callable[[ReportProgress], None] | None
) -> Iterator[pa.Table]:
    """Yield the table of each job, in the order in which the jobs end."""
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
