"""A log that is written, rolled, trimmed, cut or copied while it is read: what was planned is what is given, or an error."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import NotALogError, TrimmedError, TruncatedError
from pyreplog.tables.planning import plan
from tests import samples
from tests.ha.streams import copy, make_mirror, open_master
from tests.spark.reading import batches_of, column, options_of, read_slices
from tests.spark.streams import Query, offsets

SEGMENT = samples.SEGMENT_BYTES


def append(log: pyreplog.CommitLog, count: int) -> None:
    for _ in range(0, count, 50):
        log.append_batch([b"%06d" % (log.end + i) * 20 for i in range(50)])


def test_the_end_is_that_of_the_plan(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT) as log:
        append(log, 1000)
        options = options_of(log.path, columns="offset", minPartitions=3)
        tasks = plan(options)
        append(log, 3000)
        assert read_slices(options, tasks)["offset"].to_pylist() == list(range(1000))
        assert column(log.path, "offset") == list(range(4000))


def test_each_plan_of_a_growing_log_sees_a_prefix(tmp_path: Path) -> None:
    """Each plan sees a prefix, and not less than the one before."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT) as log:
        append(log, 50)
        writer = threading.Thread(target=append, args=(log, 20_000))
        writer.start()
        seen = 0
        while writer.is_alive():
            values = column(log.path, "value", minPartitions=2)
            assert values == [b"%06d" % n * 20 for n in range(len(values))]
            assert len(values) >= seen
            seen = len(values)
        writer.join()
        assert len(column(log.path, "value")) == log.end


def trimmed_behind_a_plan(path: Path, **options: object) -> tuple[int, list[int]]:
    with pyreplog.open(path, segment_bytes=SEGMENT) as log:
        append(log, 3000)
        new_options = options_of(path, columns="offset", **options)
        tasks = plan(new_options)
        first = log.trim(1500)
        append(log, 3000)  # into the recycled files
        return first, read_slices(new_options, tasks)["offset"].to_pylist()


def test_a_log_trimmed_before_it_is_read_fails_or_goes_on(tmp_path: Path) -> None:
    with pytest.raises(TrimmedError, match=r"\.log was (removed|replaced).*; set failOnDataLoss to false"):
        trimmed_behind_a_plan(tmp_path / "a")
    first, report = trimmed_behind_a_plan(tmp_path / "b", failOnDataLoss=False)
    assert 0 < first < 3000
    assert report == list(range(first, 3000))


def test_a_log_trimmed_while_it_is_read_keeps_the_segment_at_hand(tmp_path: Path) -> None:
    """The segment at hand stays as it is: its file is not recycled under a reader."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT) as log:
        append(log, 1000)
        options = options_of(log.path, columns="offset,value", batchRows=10)
        task = plan(options)[0]
        batches = batches_of(options, task[:1])
        rows = next(batches).to_pylist()
        log.trim(1000)
        append(log, 3000)
        for batch in batches:
            rows += batch.to_pylist()
        last = rows[-1]["offset"]
        assert rows == [{"offset": n, "value": b"%06d" % n * 20} for n in range(last + 1)]
        assert last > 100


def cut_behind_a_plan(path: Path, **options: object) -> list[int]:
    with pyreplog.open(path, segment_bytes=SEGMENT) as log:
        append(log, 1000)
        new_options = options_of(path, columns="offset", **options)
        tasks = plan(new_options)
        log.truncate(900)
        return read_slices(new_options, tasks)["offset"].to_pylist()


def test_a_log_truncated_before_it_is_read_fails_or_goes_on(tmp_path: Path) -> None:
    with pytest.raises((TruncatedError, TrimmedError), match=r"were cut|was removed"):
        cut_behind_a_plan(tmp_path / "a")
    assert cut_behind_a_plan(tmp_path / "b", failOnDataLoss=False) == list(range(900))


def test_executors_that_do_not_see_the_log(tmp_path: Path) -> None:
    samples.make_log(tmp_path / "log")
    options = options_of(tmp_path / "log", failOnDataLoss=False)
    tasks = plan(options)
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    with pytest.raises(NotALogError, match=r"log: no such directory on host .*, needed to read .*/log/0+\.log"):
        read_slices(options, tasks)


def test_a_copied_log_directory_is_read(tmp_path: Path) -> None:
    """No writer has told anything of it: neither closed nor open, its end is found as a writer would find it."""
    with pyreplog.open(tmp_path / "log", segment_bytes=SEGMENT) as log:
        append(log, 1000)
        shutil.copytree(log.path, tmp_path / "copy", ignore=shutil.ignore_patterns("fresh-*", "spare-*", "*.new"))
    (tmp_path / "copy" / "tail").unlink()
    assert column(tmp_path / "copy", "offset") == list(range(1000))
    assert column(tmp_path / "copy", "topic") == ["copy"] * 1000


def test_a_replica_shows_what_is_committed(tmp_path: Path) -> None:
    """To a batch, and to a stream, which is told of the rest when that is committed."""
    master = open_master(tmp_path / "master")
    with master, make_mirror(tmp_path / "mirror", master) as mirror, Query(mirror.path) as query:
        master.append_batch([b"%d" % n for n in range(10)])
        copy(master, mirror)
        seen = list[int]()
        for end in (0, 4, 10):
            if end:
                mirror.show(master.position_of(end) if end < 10 else master.end_position, end)
            assert column(mirror.path, "offset") == list(range(end))
            seen += offsets(query.read())
            assert seen == list(range(end))


def test_a_replicas_log_directory_is_read(tmp_path: Path) -> None:
    from pyreplog.log import replica
    from pyreplog.log.files import RealFiles

    samples.make_log(tmp_path / "log")
    with pyreplog.open(tmp_path / "log", "r") as reader:
        uuid = reader._uuid
    replica.mark(tmp_path / "log", RealFiles(), uuid)
    assert column(tmp_path / "log", "offset") == list(range(samples.ENTRIES))
