"""Exports records as Parquet files, one for each task, read and written in parallel. All files appear together, or
none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet

from pyreplog.errors import InvalidArgumentError
from pyreplog.log.files import RealFiles
from pyreplog.reports.atomic_directories import draft_of, put, tidy
from pyreplog.reports.local_engine import check_workers
from pyreplog.reports.suite import EVERY_TOPIC
from pyreplog.tables import schema
from pyreplog.tables.arrays import schema_of
from pyreplog.tables.cluster.cluster_slices import survey_of
from pyreplog.tables.log_slices import Part
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import cluster_of
from pyreplog.tables.planning import plan
from pyreplog.tables.reading import read
from pyreplog.topic_names import TOPICS

GROUP_BYTES = 64 << 20
"""Bytes of a row group, at least, if there are so many. Each worker has one row group in memory."""
GROUP_ROWS = 1 << 20

COLUMNS = (
    "topic", "partition", "offset", "timestamp", "key", "value", "headers", "producerName", "sequenceId", "publishTime",
    "eventTime",
)  # fmt: skip
"""Columns that are written by default."""


class Exported(NamedTuple):
    """The result of an export.

    Attributes:
        files: the files, in the order of their rows.
        rows: number of rows.
        bytes: bytes of the files.
    """

    files: list[Path]
    rows: int
    bytes: int


def export(
    options: ReadOptions,
    target: Path,
    *,
    overwrite: bool = False,
    workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the records that options select to Parquet files in a directory.

    The directory is created if needed. The files are part-00000.parquet and so on; each has rows of one log or topic
    after the other, by ascending offset. After Ctrl-C or an error the directory is as it was. After kill -9 a draft may
    lie beside it, or its former content under another name: the next export to the same directory removes the draft,
    and restores the content if nothing has replaced it.

    Args:
        options: what to read.
        target: the directory.
        overwrite: replace the content of the directory, once all new files are on disk.
        workers: number of threads, each of which has one row group in memory.
        progress: called in this thread with bytes of log done, and bytes in all.

    Returns:
        What was written.

    Raises:
        InvalidArgumentError: the directory is not empty, or is a file; or there is to be no thread.
        ReplogError: as planning and reading.
        OSError: a file cannot be written.
    """
    check_workers(workers)
    tidy(target)
    _check(target, overwrite)
    options = replace(options, columns=options.columns or COLUMNS, min_partitions=max(options.min_partitions, workers))
    tasks = plan(options) or [()]
    RealFiles().make_directory(target.parent, mode=0o777)
    with draft_of(target) as draft:
        written = _written(tasks, options, draft, workers, progress)
        put(draft, target)
    files = [target / file.name for file, _ in written]
    return Exported(files, sum(rows for _, rows in written), sum(file.stat().st_size for file in files))


def all_topics(options: Mapping[str, str]) -> dict[str, str]:
    """Return options that read all topics of the source, if it is a cluster with topics and nothing else is selected.

    options: those of the Spark source. Raises ConfigError, and the errors of connecting and of the metadata store.
    """
    parsed = ReadOptions.of(options)
    folder = cluster_of(parsed.paths)
    if parsed.reads_topics or parsed.ledgers is not None or (folder is None and parsed.cluster is None):
        return dict(options)
    with survey_of(folder, parsed) as survey:
        topics = survey.runtime.metadata.list(TOPICS)
    return {**options, "topicsPattern": EVERY_TOPIC} if topics else dict(options)


def _check(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise InvalidArgumentError(f"{target}: expected a directory, or none, found a file")
    if not overwrite and target.exists() and any(target.iterdir()):
        raise InvalidArgumentError(f"{target}: expected an empty directory, or none, found files; see overwrite")


def _written(
    tasks: list[tuple[Part, ...]], options: ReadOptions, draft: Path, workers: int,
    progress: Callable[[int, int], None] | None,
) -> list[tuple[Path, int]]:  # fmt: skip
    """Write all files; return them with their numbers of rows."""
    stop = threading.Event()
    sizes = [sum(part.size for part in task) for task in tasks]
    with ThreadPoolExecutor(workers) as pool:
        files = [draft / f"part-{number:05}.parquet" for number in range(len(tasks))]
        running = {
            pool.submit(_write, task, options, file, stop): number
            for number, (task, file) in enumerate(zip(tasks, files, strict=True))
        }
        rows, done = [0] * len(tasks), 0
        try:
            for future in as_completed(running):
                number = running[future]
                rows[number], done = future.result(), done + sizes[number]
                if progress is not None:
                    progress(done, sum(sizes))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return list(zip(files, rows, strict=True))


def _write(task: tuple[Part, ...], options: ReadOptions, file: Path, stop: threading.Event) -> int:
    """Write one file, and return its number of rows."""
    columns, rows = schema.default_columns(options), 0
    arrow_schema = schema_of(tuple(column.name for column in columns))
    with parquet.ParquetWriter(file, arrow_schema, compression="zstd", write_page_index=True) as writer:
        for group in _groups(read(task, columns, options)):
            if stop.is_set():
                break
            writer.write_table(group, row_group_size=max(len(group), 1))
            rows += len(group)
    RealFiles().sync_file(file)
    return rows


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)
