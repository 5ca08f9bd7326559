"""Followers: in threads, in asyncio, in other processes; live tail, time-outs, close, truncation, trim."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import pyreplog
from pyreplog._native.log.segment import Segment
from pyreplog.log import names
from pyreplog.log.commit_log import CommitLog
from tests.waiting import PATIENCE_S, until

FOLLOWER = """
import sys, pyreplog
with pyreplog.open(sys.argv[1], mode="r") as log:
    print("ready", flush=True)
    for record in log.follow(0):
        print(record.entry, record.value.decode(), flush=True)
        if record.value == b"last":
            break
"""


@pytest.fixture
def log(tmp_path: Path):
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16) as log:
        yield log


def follow_in_thread(log, *args, **kwargs) -> tuple[threading.Thread, list]:
    seen: list = []

    def run() -> None:
        try:
            seen.extend(record.value for record in log.follow(*args, **kwargs))
        except pyreplog.ReplogError as error:
            seen.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, seen


def test_follow_ends_after_the_timeout(log):
    log.append(b"a")
    assert [record.value for record in log.follow(0, timeout=0.01)] == [b"a"]


def test_follow_without_start_gives_what_comes_next(log):
    log.append(b"old")
    follower = log.follow(timeout=5)
    log.append(b"new")
    assert next(iter(follower)).value == b"new"


def test_follow_wakes_on_append_in_another_thread(log):
    follower = iter(log.follow(0, timeout=30))
    done = threading.Event()

    def writer() -> None:
        for number in range(5000):
            log.append(b"%d" % number)
        done.set()

    thread = threading.Thread(target=writer)
    thread.start()
    assert [next(follower).value for _ in range(5000)] == [b"%d" % n for n in range(5000)]
    thread.join()
    assert done.is_set()


def test_close_ends_a_waiting_follower(log):
    thread, seen = follow_in_thread(log, 0)
    log.append(b"a")
    log.close()
    thread.join(30)
    assert seen[-1] is pyreplog.ClosedError


@pytest.mark.parametrize("appended", [0, 1, 5])
def test_truncation_before_its_position_raises_truncated_error_in_a_follower(log, appended):
    log.append_batch([b"a", b"b", b"c"])
    follower = iter(log.follow(0, timeout=5))
    assert [next(follower).value for _ in range(3)] == [b"a", b"b", b"c"]
    log.truncate(1)
    log.append_batch([b"other"] * appended)
    with pytest.raises(pyreplog.TruncatedError, match="before 3, where this follower was"):
        next(follower)


def test_truncation_above_a_follower_goes_unnoticed(log):
    log.append_batch([b"%d" % n for n in range(100)])
    follower = log.follow_batches(0, timeout=0.01, batch_bytes=40)
    assert next(follower).values() == [b"0"]
    log.truncate(50)
    log.append(b"new")
    rest = [value for batch in follower for value in batch.values()]
    assert rest == [b"%d" % n for n in range(1, 50)] + [b"new"]


def test_follower_of_trimmed_entries_raises_trimmed_error(log):
    log.append_batch([bytes(1000)] * 300)
    assert log.trim(200) > 0
    with pytest.raises(pyreplog.TrimmedError):
        next(iter(log.follow(0)))


def test_a_coroutine_follows_a_log(log):
    async def main() -> list[bytes]:
        seen = []

        async def reader() -> None:
            async for record in log.follow(0, timeout=30):
                seen.append(record.value)
                if len(seen) == 300:
                    return

        task = asyncio.create_task(reader())
        for number in range(300):
            await log.submit(b"%d" % number)
            if number % 50 == 0:
                await asyncio.sleep(0)
        await task
        return seen

    assert asyncio.run(main()) == [b"%d" % n for n in range(300)]


@pytest.mark.parametrize("mode", ["w", "r"])
def test_asyncio_follow_gives_an_entry_before_the_next_one_comes(log, mode):
    async def main(source) -> None:
        follower = aiter(source.follow(0))
        for number in range(3):
            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0)  # it waits
            log.append(b"%d" % number)
            async with asyncio.timeout(PATIENCE_S):
                assert (await waiting).value == b"%d" % number

    if mode == "w":
        asyncio.run(main(log))
    else:
        with pyreplog.open(log.path, mode="r") as reader:
            asyncio.run(main(reader))


@pytest.mark.parametrize("waits", [True, False])
def test_asyncio_follower_of_a_closed_log_raises_closed_error(log, waits):
    async def main() -> None:
        waiting = asyncio.ensure_future(anext(aiter(log.follow(0))))
        if waits:
            await asyncio.sleep(0)
        log.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(pyreplog.ClosedError):
                await waiting

    asyncio.run(main())


def test_asyncio_follow_times_out(log):
    async def main() -> list[bytes]:
        return [record.value async for record in log.follow(0, timeout=0.01)]

    log.append(b"a")
    assert asyncio.run(main()) == [b"a"]


def test_asyncio_follow_times_out_behind_a_truncation(log):
    """What was visible before the log was cut is not waited for as if it still were."""

    async def main() -> list[bytes]:
        async with asyncio.timeout(PATIENCE_S):
            return [record.value async for record in log.follow(1, timeout=0.01)]

    log.append_batch([b"a", b"b", b"c"])
    assert asyncio.run(main()) == [b"b", b"c"]
    log.truncate(1)
    assert asyncio.run(main()) == []


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pyreplog-watch"]


def test_asyncio_followers_share_one_thread_that_ends_with_the_last(log):
    async def main() -> None:
        tasks = [asyncio.ensure_future(anext(aiter(log.follow(number)))) for number in (0, 1, 2)]
        await asyncio.sleep(0)  # they wait
        (thread,) = watching()
        assert thread.daemon
        log.append(b"a")
        async with asyncio.timeout(PATIENCE_S):
            assert (await tasks[0]).value == b"a"
        assert watching() == [thread]
        for task in tasks[1:]:  # they do not come any more
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    until(lambda: not watching())
    log.append_batch([b"b", b"c"])

    async def read() -> None:
        assert (await anext(aiter(log.follow(2)))).value == b"c"
        assert not watching(), "nothing has to be waited for"

    asyncio.run(read())


def test_asyncio_follower_of_a_truncated_entry_raises_truncated_error(log):
    async def main() -> None:
        log.append_batch([b"a", b"b"])
        follower = aiter(log.follow(0, timeout=5))
        assert [(await anext(follower)).value for _ in range(2)] == [b"a", b"b"]
        log.truncate(0)
        log.append(b"x")
        with pytest.raises(pyreplog.TruncatedError):
            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0)
            log.append_batch([b"y", b"z"])
            await waiting

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["appended", "synced"])
def test_other_process_follows_the_live_tail(tmp_path, durability):
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16, durability=durability) as log:
        process = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            sent = 0
            for size in (1, 10, 500, 100):  # over several segments
                log.append_batch([b"%d " % (sent + i) + b"x" * 300 for i in range(size)])
                for _ in range(size):
                    number, text = process.stdout.readline().split(" ", 1)
                    assert (int(number), text.split()[0]) == (sent, str(sent))
                    sent += 1
            log.append(b"last")
            assert process.stdout.readline() == f"{sent} last\n"
        assert process.returncode == 0


def test_reader_sees_no_more_than_the_synced_end(tmp_path):
    with pyreplog.open(tmp_path / "log", durability="synced") as log:
        log.append(b"a")
        log.append_pending(b"b")  # staged, not committed
        with pyreplog.open(tmp_path / "log", mode="r") as reader:
            assert (log.end, reader.end, reader[0]) == (1, 1, b"a")
            log.sync()
            assert (log.end, reader.end, reader[1]) == (2, 2, b"b")


def test_a_loop_that_was_left_goes_on_where_it_was(log):
    log.append_batch([b"%d" % n for n in range(10)])
    follower = log.follow(0, timeout=0.01)
    assert [next(follower).value for _ in range(3)] == [b"0", b"1", b"2"]
    assert next(iter(follower)).value == b"3"
    assert [record.value for record in follower] == [b"%d" % n for n in range(4, 10)]
    log.append(b"later")
    assert [record.entry for record in follower] == [10]


@pytest.mark.parametrize("by", ["record", "batch"])
def test_followers_pass_over_control_records(log, by):
    follower = log.follow(0, timeout=0.01) if by == "record" else log.follow_batches(0, timeout=0.01)
    for n in range(3):
        log.append_batch([b"%d" % n], control=b"control")
        log.append_batch([], control=b"and alone")
    taken = [value for item in follower for value in ([item.value] if by == "record" else item.values())]
    assert taken == [b"0", b"1", b"2"]


def test_records_are_followed_through_rolls(log):
    follower = log.follow(0, timeout=0.01)
    values = [bytes([n % 256]) * (7 * n % 3000) for n in range(500)]
    for value in values:
        log.append(value)
    assert log.stats().segments > 5
    assert [record.value for record in follower] == values


def test_follower_raises_corruption_error_at_the_position_of_a_damaged_record(log):
    log.append_batch([b"a" * 100, b"b" * 100, b"c" * 100])
    follower = log.follow(0, timeout=0.01)
    assert next(follower).entry == 0
    position = log.position_of(1)
    with names.segment_path(log.path, 0).open("r+b") as file:
        file.seek(position + 40)
        file.write(b"x")
    with pytest.raises(pyreplog.CorruptionError) as caught:
        next(follower)
    assert caught.value.position == position


def test_a_log_that_is_closed_while_a_segment_is_mapped_was_not_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of a node's role closes its log: a follower that was far behind heard of a retention that never was."""
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16) as log:
        for _ in range(20):
            log.append(bytes(10_000))
    log = pyreplog.open(tmp_path / "log", segment_bytes=1 << 16)
    map_segment = CommitLog._open_segment

    def slow(self: CommitLog, base: int) -> Segment:
        segment = map_segment(self, base)
        self.close()
        return segment

    monkeypatch.setattr(CommitLog, "_open_segment", slow)
    follower = log.follow(0, timeout=1.0)
    with pytest.raises(pyreplog.ClosedError):
        next(follower)


STOPPED = """
import asyncio, sys, pyreplog
log = pyreplog.open(sys.argv[1])

async def follow():
    async for record in log.follow(0):
        pass

loop = asyncio.new_event_loop()
task = loop.create_task(follow())
loop.call_later(0.1, loop.stop)
loop.run_forever()
sys.stderr.close()  # of a task that is pending, and so on
"""


def test_a_loop_that_stopped_while_a_task_follows_does_not_keep_its_program(tmp_path: Path):
    """The thread that sleeps for its tasks goes with the program."""
    subprocess.run([sys.executable, "-c", STOPPED, str(tmp_path / "log")], check=True, timeout=60)
