"""The power is cut, and processes are killed, while compacted segments are written and taken over."""

from __future__ import annotations

import itertools
import shutil
from contextlib import ExitStack
from pathlib import Path
from random import Random

from pyreplog.errors import PartitionTimeoutError, PartitionUnavailableError, ReplogError
from pyreplog.log import names
from pyreplog.log.files import RealFiles
from pyreplog.log.fsck.check import check
from pyreplog.metadata.url import open_store
from pyreplog.partition.client.partitions import Partitions
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.store.log_cleaner import LogCleaner
from pyreplog.partition.store.partition_log import PartitionLog
from tests.crash.disk import Disk, PowerCutFiles
from tests.crash.process import in_process
from tests.ha.streams import config
from tests.thorough import one_in
from tests.waiting import PATIENCE_S, until

from .broker_processes import Processes
from .compacted_replicas import Replicas, read_rows, state_of
from .managers import EVENTS, NAMES, WALL_US
from .partition_logs import UUID


def test_a_power_cut_at_every_step_of_taking_over(ram_path: Path, seed: int) -> None:
    """Whatever a cut leaves: each segment is the former one or the leader's, and the file `cleaned` claims no more."""
    rng = Random(seed)
    replicas = Replicas(ram_path, rng, keys=4)
    try:
        replicas.fill(2)
        replicas.clean()
        leader = replicas.leader
        cleaned = leader.partition.cleaned_segments(leader.partition.member, leader.epoch, 0)
        path = ram_path / next(name for name in NAMES if name != leader.name) / str(EVENTS)
        contents = {each.base: names.segment_path(leader.log.path, each.base).read_bytes() for each in cleaned.segments}
    finally:
        replicas.close()
    former = {base: names.segment_path(path, base).read_bytes() for base in contents}
    assert len(contents) >= 2 and all(former[base] != contents[base] for base in contents)

    def work() -> None:
        disk = Disk(path, ram_path / "unused", rng)
        files, count = PowerCutFiles(disk), itertools.count()
        with PartitionLog.open_or_create(path, config(), uuid=UUID, files=files) as log:
            log.show_high_watermark(log.end_mark)
            cleaner = LogCleaner(log, files)
            disk.at_tick = lambda: disk.leave(ram_path / f"image {next(count)}", rng)
            cleaner.begin()
            cleaner.digests(log.end_mark, WALL_US, cleaned.cleaned)
            for digest in cleaned.segments:
                copy, at = cleaner.begin_copy(digest), 0
                while at < digest.size:
                    piece = contents[digest.base][at : min(at + 5000, digest.size)]
                    copy.write(piece)
                    at += len(piece)
                copy.finish()
                cleaner.take_over(copy)
            cleaner.note_cleaned(cleaned.cleaned)
            disk.at_tick = None

    assert not in_process(work, ram_path / "report")
    images = sorted(ram_path.glob("image *"))
    assert len(images) > 20
    seen = set[bool]()
    for image in images:
        with PartitionLog.open_or_create(image, config(), uuid=UUID) as log:
            log.show_high_watermark(log.end_mark)
            rows, expected = read_rows(log, replicas.aborted), replicas.expected(log, log.end_mark.entry)
            assert rows.items() <= expected.items()
            assert state_of(rows) == state_of(expected)
            found = {base: names.segment_path(image, base).read_bytes() for base in contents}
            assert all(found[base] in (former[base], contents[base]) for base in contents)
            claims = LogCleaner(log, RealFiles()).cleaned > 0
            assert not claims or found == contents
            seen.add(claims)
        assert list(image.glob("fresh-*")) == []
        assert check(image).damages == ()
        shutil.rmtree(image)
    assert False in seen


SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.01,
    "segment.bytes": 65536,
    "max.message.bytes": 30_000,
}


def test_brokers_are_killed_while_they_compact(tmp_path: Path, seed: int) -> None:
    """The leader or a follower, at any moment. What was acknowledged last of each key is there; all have the same bytes."""
    rng = Random(seed)
    latest, unknown = dict[bytes, bytes](), set[tuple[bytes, bytes]]()
    with ExitStack() as stack:
        processes = Processes(tmp_path, stack, "cleaner_check_ms=10")
        with open_store(processes.url) as store:
            create_topic(
                store, "states", partitions=1, replication_factor=3, min_isr=2, now_us=1, settings=SETTINGS
            )  # fmt: skip
        topic = until(lambda: find(processes, "states"))
        for _ in range(2 // one_in(2)):
            for _ in range(rng.randint(250, 350)):
                key, value = b"key %d" % rng.randrange(8), rng.randbytes(1000)
                try:
                    topic[0].append(value, key)
                except PartitionTimeoutError:
                    unknown.add((key, value))
                except PartitionUnavailableError:
                    pass
                else:
                    latest[key] = value
            victim = rng.choice("abc")
            processes.kill(victim)
            processes.start(victim)
            until(lambda: len(topic[0].isr) == 3, patience_s=3 * PATIENCE_S)
        until(lambda: sum(map(len, topic[0].read())) < 200, 3 * PATIENCE_S, pause_s=0.2)  # the leader has cleaned
        until(lambda: len({closed_segments(tmp_path / name) for name in "abc"}) == 1, 3 * PATIENCE_S, pause_s=0.1)
        for _ in range(2):
            found = dict[bytes, bytes]()
            for batch in topic[0].read():
                found.update(zip(batch.keys(), batch.values(), strict=True))
            assert {key: value for key, value in found.items() if (key, value) not in unknown} == {
                key: value for key, value in latest.items() if (key, found[key]) not in unknown
            }
            processes.kill(processes.leader(topic))
    for name in "abc":
        (log,) = (path for path in (tmp_path / name).iterdir() if path.name.endswith("-0"))
        assert not any(damage.costs_entries for damage in check(log).damages)


def find(processes: Processes, name: str) -> Partitions | None:
    try:
        topic = processes.client.topic(name)
        return topic if topic[0].leader else None
    except ReplogError:
        return None


def closed_segments(directory: Path) -> tuple[bytes, ...]:
    """The content of the segments of a broker's replica that are surely closed: the first two."""
    (log,) = (path for path in directory.iterdir() if path.name.endswith("-0"))
    return tuple(names.segment_path(log, number * 65536).read_bytes() for number in range(2))
