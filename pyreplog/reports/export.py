"""Records as Parquet files: one a task, read and written in parallel; all of them are there at the end, or none."""

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
from pyreplog.reports.suite import EVERY_TOPIC
from pyreplog.tables import schema
from pyreplog.tables.arrays import schema_of
from pyreplog.tables.cluster.clusterplan import survey_of
from pyreplog.tables.logslices import Part
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.paths import cluster_of
from pyreplog.tables.planning import plan
from pyreplog.tables.reading import read
from pyreplog.topic.model.names import TOPICS

GROUP_BYTES = 64 << 20
"""Of a row group, at least, where there is so much: as much is in memory for each worker."""
GROUP_ROWS = 1 << 20

COLUMNS = (
    "topic", "partition", "offset", "timestamp", "key", "value", "headers", "producerName", "sequenceId", "publishTime",
    "eventTime",
)  # fmt: skip
"""What is written, if nobody says."""


class Exported(NamedTuple):
    """files, in the order of what they hold; rows; bytes: of the files."""

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
    """Write what options name to Parquet files in a directory, which is made: part-00000.parquet and so on, each with
    rows of one log or topic after the other, offsets ascending. Ctrl-C or an error leaves the directory as it was;
    kill -9 may leave a draft beside it, or what was there before under another name: the next export to the same
    directory removes the one, and puts the other back first, should nothing have come in its place.

    overwrite: what is in the directory goes, once all of the new files are on disk. workers: threads, each of which
    has one row group in memory. progress: told in this thread bytes of log that are done, and of how many.

    Errors: InvalidArgumentError: the directory has something in it, or is a file; those of planning and reading;
    OSError: of writing.
    """
    tidy(target)
    _check(target, overwrite)
    options = replace(options, columns=options.columns or COLUMNS, min_partitions=max(options.min_partitions, workers))
    tasks = plan(options) or [()]
    RealFiles().make_directory(target.parent, mode=0o777)
    with draft_of(target) as draft:
        made = _written(tasks, options, draft, workers, progress)
        put(draft, target)
    files = [target / file.name for file, _ in made]
    return Exported(files, sum(rows for _, rows in made), sum(file.stat().st_size for file in files))


def all_topics(given: Mapping[str, str]) -> dict[str, str]:
    """Options of the Spark source; of a cluster with topics, those that read all of them, if nothing else is asked for.

    Errors: ConfigError; those of connecting, and of the metadata store."""
    options = ReadOptions.of(given)
    folder = cluster_of(options.paths)
    if options.reads_topics or options.ledgers is not None or (folder is None and options.cluster is None):
        return dict(given)
    with survey_of(folder, options) as survey:
        found = survey.runtime.metadata.list(TOPICS)
    return {**given, "topicsPattern": EVERY_TOPIC} if found else dict(given)


def _check(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise InvalidArgumentError(f"{target}: expected a directory, or none, found a file")
    if not overwrite and target.exists() and any(target.iterdir()):
        raise InvalidArgumentError(f"{target}: expected an empty directory, or none, found files; see overwrite")


def _written(
    tasks: list[tuple[Part, ...]], options: ReadOptions, draft: Path, workers: int,
    progress: Callable[[int, int], None] | None,
) -> list[tuple[Path, int]]:  # fmt: skip
    """The files, with their rows."""
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
    """Returns how many rows there are."""
    columns, rows = schema.default_columns(options), 0
    found = schema_of(tuple(column.name for column in columns))
    with parquet.ParquetWriter(file, found, compression="zstd", write_page_index=True) as writer:
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
