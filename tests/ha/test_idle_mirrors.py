"""A mirror log with a runtime closes its files while nothing arrives: its marks stay, and the stream goes on later."""

from __future__ import annotations

import time
from pathlib import Path

import pyreplog
from pyreplog.log.runtime import LogRuntime
from pyreplog.stream.mirror_log import MirrorLog
from tests.ha.streams import SEGMENT_BYTES, assert_same_files, config, copy, frames_of, open_master, stream, values
from tests.waiting import until


def marks(mirror: MirrorLog) -> list[object]:
    return [mirror.received_mark, mirror.synced_mark, mirror.progress, mirror.received_end, mirror.end, mirror.start]


def test_an_idle_copy_keeps_its_marks_and_the_stream_goes_on(tmp_path: Path):
    with open_master(tmp_path / "master") as master, LogRuntime(idle_ms=10) as runtime:
        mirror = MirrorLog.create(
            tmp_path / "copy", config(), uuid=master.uuid, segment_bytes=SEGMENT_BYTES, start=(0, 0), runtime=runtime
        )
        for count in (0, 1, 30, 100, 5):
            master.append_batch(values(count, master.end))
            copy(master, mirror)
            mirror.show(1 << 40, 1 << 40)
            mirror.sync()
            before = marks(mirror)
            until(lambda: mirror.is_dormant)
            assert marks(mirror) == before and mirror.end == master.end
            assert [record.value for batch in mirror.read(0) for record in batch] == master[:]
        assert_same_files(master, mirror)
        until(lambda: mirror.is_dormant)
        mirror.close()
        with MirrorLog(tmp_path / "copy", config(), runtime=runtime) as mirror:
            assert mirror.is_dormant
            master.append_batch(values(50, master.end))
            copy(master, mirror)
            assert_same_files(master, mirror)
            until(lambda: mirror.is_dormant)
            mirror.promote()
    with pyreplog.open(tmp_path / "copy") as log:
        assert log[:] == values(186)


def test_a_copy_that_was_idle_has_all_its_room_when_it_is_opened_without_a_runtime(tmp_path: Path):
    """A master appends through the mapping: if the file had no room, the process would be killed."""
    path = tmp_path / "copy"
    with open_master(tmp_path / "master") as master, LogRuntime(idle_ms=5) as runtime:
        master.append(b"value")
        with MirrorLog.create(
            path, config(), uuid=master.uuid, segment_bytes=SEGMENT_BYTES, start=(0, 0), runtime=runtime
        ) as mirror:
            copy(master, mirror)
            until(lambda: mirror.is_dormant)
    file = path / f"{0:020d}.log"
    assert file.stat().st_blocks * 512 < SEGMENT_BYTES
    MirrorLog(path, config()).close()
    assert file.stat().st_blocks * 512 >= SEGMENT_BYTES


def test_a_copy_within_a_record_is_not_closed(tmp_path: Path):
    with open_master(tmp_path / "master") as master, LogRuntime(idle_ms=5) as runtime:
        master.append(b"whole")
        master.append(bytes(range(256)) * 100)
        with MirrorLog.create(
            tmp_path / "copy", config(), uuid=master.uuid, segment_bytes=SEGMENT_BYTES, start=(0, 0), runtime=runtime
        ) as mirror:
            (_, header), (position, body) = frames_of(stream(master, 0, transfer_bytes=1 << 20))
            mirror.begin(header)
            mirror.append_replicated(position, [body[:20_000]])
            until(lambda: mirror.synced_mark == mirror.received_mark)  # it is idle, and was synced because of that
            for _ in range(20):
                mirror.run_background_tasks()
                time.sleep(0.001)
            assert not mirror.is_dormant and mirror.received_mark.entry == 1
            mirror.append_replicated(position + 20_000, [body[20_000:]])
            assert mirror.received_mark.entry == 2
            until(lambda: mirror.is_dormant)
            assert_same_files(master, mirror)
