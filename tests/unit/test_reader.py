"""Readers and the writers that come and go: when the tail page is believed, and what a reader keeps mapped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import pyreplog
from pyreplog import CorruptionError, TruncatedError
from pyreplog._native.log.segment_header import encode_header
from pyreplog._native.log.tail_page import PAGE, Tail
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import headers, names, reader, startup, truncation
from pyreplog.log.files import RealFiles, boot_id
from pyreplog.log.segments import PREPARED
from pyreplog.log.truncation import Truncation
from tests import samples

SIZE = 1 << 16
BOOT_AT, UUID_AT, WORDS_AT = 16, 32, 48


def overwrite(at: int, data: bytes) -> Callable[[Path], None]:
    def change(page: Path) -> None:
        with page.open("r+b") as file:
            file.seek(at)
            file.write(data)

    return change


PAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "empty": lambda page: page.write_bytes(b"") and None,
    "short": lambda page: os.truncate(page, 1000),
    "zeros": overwrite(0, bytes(PAGE)),
    "another boot's": overwrite(BOOT_AT, b"another boot's!!"),
    "another log's": overwrite(UUID_AT, b"another log's uu"),
    "of another boot and log": overwrite(BOOT_AT, b"?" * 32),
    "noise": overwrite(0, bytes(range(256)) * (PAGE // 256)),
}


@pytest.fixture(params=PAGES)
def cold(request, tmp_path: Path) -> Path:
    """A log of three entries that no writer has opened since the boot, as far as its tail page tells."""
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SIZE) as log:
        log.append_batch([b"0", b"1", b"2"])
    PAGES[request.param](path / names.TAIL)
    return path


# ---- a writer that comes later -------------------------------------------------------------------------------------


def test_a_reader_picks_up_a_writer_that_opens_later(cold: Path):
    with pyreplog.open(cold, "r") as handle:
        assert not handle.live and (handle.end, handle[:]) == (3, [b"0", b"1", b"2"])
        with pyreplog.open(cold) as log:
            assert handle.live
            log.append_batch([b"%d" % n + bytes(1000) for n in range(3, 203)])
            assert (handle.end, handle.end_position) == (203, log.end_position)
            assert handle[:] == log[:] and handle.get(202).value == log[202]
            log.trim(100)
            assert handle.start == log.start > 0
        assert not handle.live and handle.end == 203


def test_a_follower_waits_for_a_writer_that_opens_later(cold: Path):
    with pyreplog.open(cold, "r") as handle:
        follower = iter(handle.follow(0, timeout=60))
        assert [next(follower).value for _ in range(3)] == [b"0", b"1", b"2"]
        seen: list[bytes] = []
        thread = threading.Thread(target=lambda: seen.extend(next(follower).value for _ in range(2)))
        thread.start()
        with pyreplog.open(cold) as log:
            log.append(b"3")
            log.append(b"4")
            thread.join(60)
        assert seen == [b"3", b"4"]


def test_an_asynchronous_follower_waits_for_a_writer_that_opens_later(cold: Path):
    async def main() -> list[bytes]:
        with pyreplog.open(cold, "r") as handle:
            records = aiter(handle.follow(2, timeout=60))
            seen = [(await anext(records)).value]
            task = asyncio.ensure_future(anext(records))
            await asyncio.sleep(0)
            with pyreplog.open(cold) as log:
                log.append(b"3")
                seen.append((await task).value)
            return seen

    assert asyncio.run(main()) == [b"2", b"3"]


def test_followers_without_a_writer_end_with_their_time_and_at_close(cold: Path):
    async def last(handle: pyreplog.LogReader) -> list[bytes]:
        return [record.value async for record in handle.follow(2, timeout=0.01)]

    with pyreplog.open(cold, "r") as handle:
        assert [record.value for record in handle.follow(2, timeout=0.01)] == [b"2"]
        assert asyncio.run(last(handle)) == [b"2"]
        waiting = iter(handle.follow())
    with pytest.raises(pyreplog.ClosedError):
        next(waiting)


def test_a_scan_goes_on_into_what_a_writer_appends(cold: Path):
    with pyreplog.open(cold, "r") as handle:
        batches = handle.read(0, batch_bytes=1)
        assert next(batches).values() == [b"0"]
        with pyreplog.open(cold) as log:
            log.append(b"3")
            assert [value for batch in batches for value in batch.values()] == [b"1", b"2", b"3"]


def test_a_scan_at_the_end_is_not_cut_by_a_writer_that_only_opens(cold: Path):
    with pyreplog.open(cold, "r") as handle:
        batches = handle.read(0)
        assert len(next(batches)) == 3
        with pyreplog.open(cold):
            assert list(batches) == []


def test_follower_raises_truncated_error_after_a_later_writer_truncated(cold: Path):
    with pyreplog.open(cold, "r") as handle:
        follower = iter(handle.follow(0, timeout=60))
        assert [next(follower).value for _ in range(3)] == [b"0", b"1", b"2"]
        with pyreplog.open(cold) as log:
            log.truncate(1)
            log.append_batch([b"other"] * 5)
            with pytest.raises(TruncatedError):
                next(follower)


def test_a_follower_goes_on_where_a_later_writer_has_trimmed_what_it_was_given(cold: Path):
    with pyreplog.open(cold, "r") as handle:
        follower = iter(handle.follow(0, timeout=60))
        assert [next(follower).value for _ in range(3)] == [b"0", b"1", b"2"]
        with pyreplog.open(cold) as log:
            log.truncate(3)
            while log.stats().segments < 2:
                log.append(bytes(1000))
            first = samples.first_entries(cold)[1]
            assert first > 3
            log.trim(first)
            with pytest.raises(pyreplog.TrimmedError):
                next(follower)
            assert next(iter(handle.follow(first, timeout=60))).entry == first


def test_segment_mapped_by_a_reader_before_the_writer_opened_is_not_recycled(cold: Path):
    """A writer that comes later must not put new records where the reader still looks."""
    with pyreplog.open(cold, "r") as handle:
        record = handle.get(1)
        with pyreplog.open(cold, spare_segments=1) as log:
            for _ in range(4):
                log.append_batch([bytes(1000)] * 100)
                log.trim(log.end)
            assert log.start > 3
            assert (record.value, handle.live) == (b"1", True)


# ---- a writer that is opening ------------------------------------------------------------------------------------


def test_words_of_another_boot_or_log_are_cleared_before_the_page_names_this_one(cold: Path, monkeypatch):
    """At each step of the writer's a reader that maps the page trusts nothing, or the truth."""
    log_uuid = checkpoints.load(cold).uuid
    seen: list[tuple[bool, int]] = []

    def look() -> None:
        with (cold / names.TAIL).open("rb") as file:
            page = Tail(file, writable=False)
        seen.append((page.belongs_to(boot_id(), log_uuid), page.visible))
        with pyreplog.open(cold, "r") as handle:
            assert (handle.end, handle[:]) == (3, [b"0", b"1", b"2"])

    class Watched:
        """The page as the writer handles it; looked at before and after each call."""

        def __init__(self, page: Tail) -> None:
            self._page = page

        def __getattr__(self, name: str):
            value = getattr(self._page, name)
            return self._watched(value) if name in ("publish", "begin") else value

        def _watched(self, call: Callable[..., None]) -> Callable[..., None]:
            def watched(**arguments: object) -> None:
                look()
                call(**arguments)
                look()

            return watched

    def open_watched(path: Path, files: RealFiles, started: startup.StartupResult) -> Tail:
        with monkeypatch.context() as patched:
            patched.setattr(startup, "Tail", lambda file, writable: Watched(Tail(file, writable=writable)))
            return opened(path, files, started)._page

    opened = startup.open_tail
    monkeypatch.setattr(startup, "open_tail", open_watched)
    with pyreplog.open(cold):
        assert seen[-1] == (True, 0) and all(visible == 0 for mine, visible in seen if mine)


def test_reader_follows_an_end_that_recovery_moved_back(tmp_path: Path):
    """Of this boot: the page's words stay, and one may say more than recovery has found intact."""
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SIZE) as log:
        log.append_batch([b"0", b"1", b"2"])
        position = log.position_of(2)
        handle = pyreplog.open(path, "r")
        follower = iter(handle.follow(0, timeout=60))
        assert [next(follower).value for _ in range(3)] == [b"0", b"1", b"2"]
    with names.segment_path(path, 0).open("r+b") as file:
        file.seek(position)
        file.write(bytes(SIZE - position))
    (path / names.CHECKPOINT).unlink()  # nothing is proven: the log may end before the record
    with pyreplog.open(path) as log, handle:
        assert log.end == handle.end == 2
        log.append_batch([b"other", b"more"])
        with pytest.raises(TruncatedError):
            next(follower)


def test_follower_raises_truncated_error_after_the_next_writer_finished_a_truncation(tmp_path: Path):
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SIZE) as log:
        log.append_batch([b"%04d" % n + bytes(1000) for n in range(200)])
        position = log.position_of(10)
        handle = pyreplog.open(path, "r")
        follower = iter(handle.follow(0, timeout=60))
        assert [next(follower).entry for _ in range(200)][-1] == 199
    truncation.announce(path, RealFiles(), Truncation(position, 10, 7))  # and then the writer was killed

    class Watched(RealFiles):
        """Files go one by one: whoever opens the log meanwhile sees it cut, and not damaged."""

        def remove(self, path: Path) -> None:
            super().remove(path)
            if path.suffix == ".log":
                with pyreplog.open(path.parent, "r") as newcomer:
                    assert newcomer.end == handle.end == 10

    with handle, pyreplog.open(path, files=Watched()) as log:
        assert log.end == handle.end == 10
        log.append_batch([b"other"] * 300)
        assert handle[9:11] == log[9:11]
        with pytest.raises(TruncatedError):
            next(follower)


# ---- what is missing, what is mapped -----------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [0, 1, 3])
@pytest.mark.parametrize("told", ["by the page", "by nobody"])
def test_a_missing_segment_is_named(tmp_path: Path, gone: int, told: str):
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SIZE) as log:
        log.append_batch([bytes(1000)] * 230)
        assert log.stats().segments == 4
    missing = names.segment_path(path, gone * SIZE)
    missing.unlink()
    if told == "by nobody":
        (path / names.TAIL).unlink()
    with pytest.raises(CorruptionError) as caught:
        pyreplog.open(path, "r")
    assert caught.value.path == missing


def mapped(path: Path) -> list[str]:
    """The segment files below a directory that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(path) in line and (".log" in line or ".seg" in line)]


def descriptors(path: Path) -> int:
    """Open descriptors of segment files below a directory."""
    links = list[Path]()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread's, or that of this look: closed meanwhile
            links.append(link.readlink())
    return sum(link.is_relative_to(path) and link.suffix == ".log" for link in links)


def test_readers_keep_few_segments_mapped(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(reader, "MAPPED_MAX", 8)
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SIZE) as log:
        log.append_batch([b"%06d" % n + bytes(1000) for n in range(3000)])
        segments = log.stats().segments
    assert segments > 40
    with pyreplog.open(path, "r") as handle:
        assert sum(len(batch) for batch in handle.read()) == 3000
        assert 0 < descriptors(path) <= 10
        for entry in range(0, 3000, 50):
            assert handle[entry].startswith(b"%06d" % entry)
        assert 0 < descriptors(path) <= 10
        assert handle.read_event_times(0, 1) is not None and list(handle.read_event_times(0, 1)) == []
        pinned = [handle.get(entry) for entry in range(0, 3000, 50)]
        assert descriptors(path) >= segments - 10
        assert [record.value[:6] for record in pinned] == [b"%06d" % entry for entry in range(0, 3000, 50)]


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_after_close_nothing_stays_mapped_but_what_is_pinned(tmp_path: Path, durability: str):
    path = tmp_path / "log"
    log = pyreplog.open(path, segment_bytes=SIZE, durability=durability)
    log.append_batch([bytes(1000)] * 300)
    handle = pyreplog.open(path, "r")
    assert handle[0] == handle[299] == log[0] == log[299]
    assert sum(len(batch) for batch in handle.read()) == sum(len(batch) for batch in log.read()) == 300
    kept = handle.get(0), log.get(299)
    handle.close()
    log.close()
    assert len(mapped(path)) == 2
    assert [len(record.value) for record in kept] == [1000, 1000]
    del kept
    assert mapped(path) == []
    assert "closed" in repr(log)


def test_after_close_no_index_stays_mapped(tmp_path: Path):
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SIZE) as log:
        log.append_batch([bytes(1000)] * 300)
    with pyreplog.open(path, "r") as handle:
        assert handle[0] == handle[299] == bytes(1000)
        assert f"{path}/{0:020d}.idx" in Path("/proc/self/maps").read_text()
    assert f"{path}/{0:020d}.idx" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_log_without_a_checkpoint_is_opened_with_few_descriptors(tmp_path: Path, mode):
    """Then all its segments are verified, of which there may be more than a process may have files open."""
    path = tmp_path / "log"
    with pyreplog.open(path, segment_bytes=SIZE) as log:
        log.append_batch([bytes(1000)] * 3000)
    for lost in (names.CHECKPOINT, names.TAIL):
        (path / lost).unlink()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 30, limit[1]))
    try:
        with pyreplog.open(path, mode) as handle:
            assert handle.end == 3000 and handle[2999] == bytes(1000)
            if mode == "a":
                assert handle.append(b"more") == 3000
                handle.sync()  # writes the indexes of all that was found
                assert handle[0] == handle[1500] == bytes(1000)
                assert handle.trim(2900) > 2800
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@pytest.mark.parametrize("present", ["another place", "another log", "prepared", "damaged"])
@pytest.mark.parametrize("opened", [False, True], ids=["opened later", "open"])
def test_a_segment_that_is_not_the_one_of_its_place(tmp_path: Path, present: str, opened: bool) -> None:
    """A writer of this boot has told where the log ends: its files are looked at all the same, not passed over."""
    for name in ("log", "other"):
        with pyreplog.open(tmp_path / name, segment_bytes=1 << 16) as log:
            log.append_batch([name.encode() * 100] * 1000)
    second, third = sorted((tmp_path / "log").glob("*.log"))[1:3]
    before = pyreplog.open(tmp_path / "log", "r") if opened else None
    if present == "another place":
        second.rename(tmp_path / "kept")
        third.rename(second)
        (tmp_path / "kept").rename(third)
    elif present == "another log":
        shutil.copyfile(tmp_path / "other" / second.name, second)
    else:
        uuid, base, size, _, epoch, _ = headers.read_header(second)
        header = encode_header(uuid, base, size, PREPARED, epoch)
        with second.open("r+b") as file:
            file.write(header if present == "prepared" else header[:20] + b"?" + header[21:])
    with pytest.raises(CorruptionError) as caught:
        with before if before is not None else pyreplog.open(tmp_path / "log", "r") as log:
            log[:]
    assert caught.value.path == second
