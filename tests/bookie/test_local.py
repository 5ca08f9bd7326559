"""LocalBookie: real logs, threads, group commit, restarts, and the order of syncs and replies."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.bookie.fast_add import LATER, as_fast_add
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request
from pyreplog.errors import ClosedError, ConfigError, InvalidRecordsError, LockedError
from pyreplog.log.files import RealFiles
from tests.bookie.asking import ANY_SPACE, OTHER_KEY, add, entries_in, last, read, records_of, set_lac, wait_lac

WAIT_S = 60.0
SOON_S = 10.0
DURABILITIES = ("appended", "synced")


class Countless(RealFiles):
    """Notes every sync; holds them back, or fails them, if told to."""

    def __init__(self) -> None:
        self.syncs = 0
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()
        self.failing = False

    def _synced(self) -> None:
        self.began.set()
        assert self.go.wait(WAIT_S)
        if self.failing:
            raise OSError(5, os.strerror(5))
        self.syncs += 1

    def sync(self, fd: int) -> None:
        self._synced()

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self._synced()
        self.write(fd, data, offset)


class Answer:
    """Of one request, when it comes."""

    def __init__(self, bookie: LocalBookie, request: Request) -> None:
        self._come = threading.Event()
        self._replies: list[Reply] = []
        bookie.request(request, self._take)

    def _take(self, reply: Reply) -> None:
        self._replies.append(reply)
        self._come.set()

    @property
    def is_there(self) -> bool:
        return self._come.is_set()

    def wait(self) -> Reply:
        assert self._come.wait(WAIT_S), "no answer"
        (reply,) = self._replies
        return reply


def ask(bookie: LocalBookie, request: Request) -> Reply:
    return Answer(bookie, request).wait()


def config(durability: str = "synced", **settings: Any) -> BookieConfig:
    return BookieConfig.of({"durability": durability, "segment_bytes": 64 << 10, **ANY_SPACE, **settings})


@pytest.fixture
def files() -> Countless:
    return Countless()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_acknowledged_entries_fences_and_lacs_survive_a_restart(durability: str, tmp_path: Path) -> None:
    with LocalBookie(tmp_path, config(durability)) as bookie:
        incarnation = bookie.incarnation
        assert ask(bookie, add(0, 1, 2)).status == ReplyStatus.OK
        assert ask(bookie, add(0, 1, ledger=8)).status == ReplyStatus.OK
        assert ask(bookie, set_lac(1, ledger=8)).status == ReplyStatus.OK
        assert ask(bookie, last(fence=True)).last == 2
    with LocalBookie(tmp_path, config(durability)) as bookie:
        assert bookie.incarnation == incarnation
        assert ask(bookie, add(3)).status == ReplyStatus.FENCED
        assert ask(bookie, add(3, key=OTHER_KEY)).status == ReplyStatus.UNAUTHORIZED
        assert entries_in(ask(bookie, read(0, 9))) == [0, 1, 2] and ask(bookie, last()).lac == 1
        assert ask(bookie, last(ledger=8)) == Reply(ReplyStatus.OK, 8, 0, 1, 1)
        assert entries_in(ask(bookie, read(0, 9, step=2))) == [0, 2]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(
    "request_", [add(0), last(fence=True), read(0, 3, flags=Flag.FENCE), last(fence=True, ledger=99)]
)
def test_no_reply_before_the_sync(durability: str, request_: Request, tmp_path: Path, files: Countless) -> None:
    """45, 33: adds, and fences of known and unknown ledgers, positive and negative."""
    with LocalBookie(tmp_path, config(durability), files=files) as bookie:
        ask(bookie, add(5))
        before = files.syncs
        files.go.clear()
        answer = Answer(bookie, request_)
        assert not answer.is_there
        files.go.set()
        assert answer.wait().status == ReplyStatus.OK and files.syncs > before


def test_unsynced_adds_are_answered_inline(tmp_path: Path, files: Countless) -> None:
    with LocalBookie(tmp_path, config("appended"), files=files) as bookie:
        files.go.clear()
        answer = Answer(bookie, add(0, 1, flags=Flag.UNSYNCED))
        assert answer.is_there and entries_in(ask(bookie, read(0, 9))) == [0, 1]
        files.go.set()


def test_one_sync_serves_all_adds_that_arrived_during_another(tmp_path: Path, files: Countless) -> None:
    with LocalBookie(tmp_path, config(), files=files) as bookie:
        ask(bookie, add(0))
        files.go.clear()
        before = files.syncs
        answers = [Answer(bookie, add(entry)) for entry in range(1, 50)]
        files.go.set()
        assert all(answer.wait().status == ReplyStatus.OK for answer in answers)
        assert files.syncs - before <= 3


def test_a_failed_sync_is_unknown_to_all_for_good(tmp_path: Path, files: Countless) -> None:
    bookie = LocalBookie(tmp_path, config(), files=files)
    ask(bookie, add(0))
    files.failing = True
    assert ask(bookie, add(1)).status == ReplyStatus.UNKNOWN
    files.failing = False
    assert ask(bookie, add(2)).status == ask(bookie, read(0, 0)).status == ReplyStatus.UNKNOWN
    assert bookie.failure is not None
    bookie.close()


def test_each_of_many_threads_gets_its_own_replies(tmp_path: Path) -> None:
    """Every one gets its own answers, and what it was promised is there."""
    with LocalBookie(tmp_path, config("appended")) as bookie:
        wrong: list[object] = []

        def work(ledger: int) -> None:
            for entry in range(40):
                reply = ask(bookie, add(entry, ledger=ledger, flags=Flag.UNSYNCED if entry % 4 else 0))
                got = entries_in(ask(bookie, read(entry, entry, ledger=ledger)))
                if (reply.ledger, reply.last, got) != (ledger, entry, [entry]):
                    wrong.append((reply, got))

        threads = [threading.Thread(target=work, args=(ledger,)) for ledger in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert [ask(bookie, last(ledger=ledger)).last for ledger in range(6)] == [39] * 6


def test_a_reply_may_lead_to_the_next_request(tmp_path: Path) -> None:
    with LocalBookie(tmp_path, config()) as bookie:
        done = threading.Event()

        def next_one(entry: int) -> Callable[[Reply], None]:
            def on_reply(reply: Reply) -> None:
                if entry == 20:
                    done.set()
                else:
                    bookie.request(add(entry), next_one(entry + 1))

            return on_reply

        bookie.request(add(0), next_one(1))
        assert done.wait(WAIT_S)


def test_long_polls_end_by_themselves(tmp_path: Path) -> None:
    with LocalBookie(tmp_path, config("appended")) as bookie:
        ask(bookie, add(0))
        assert ask(bookie, wait_lac(5, limit=20)).lac == -1
        poll = Answer(bookie, wait_lac(0, limit=60_000))
        ask(bookie, add(2, flags=Flag.UNSYNCED))
        assert poll.wait().lac == 1


@pytest.mark.parametrize("durability", DURABILITIES)
def test_close_commits_and_answers(durability: str, tmp_path: Path) -> None:
    bookie = LocalBookie(tmp_path, config(durability))
    adds = [Answer(bookie, add(entry)) for entry in range(20)]
    poll = Answer(bookie, wait_lac(99, limit=60_000))
    bookie.close()
    assert [answer.wait().status for answer in adds] == [ReplyStatus.OK] * 20
    assert poll.wait().status == ReplyStatus.UNKNOWN
    with pytest.raises(ClosedError):
        bookie.request(last(), print)


def test_a_directory_has_one_bookie(tmp_path: Path) -> None:
    with LocalBookie(tmp_path, config()), pytest.raises(LockedError) as refused:
        LocalBookie(tmp_path, config())
    assert refused.value.pid == os.getpid()


def test_a_damaged_record_is_seen_by_its_reader_and_can_be_written_again(tmp_path: Path) -> None:
    """44 in our terms: damage below the proven end is an error at the entry it hits, and nowhere else."""
    with LocalBookie(tmp_path, config("appended")) as bookie:
        ask(bookie, add(*range(6)))
        path = min((tmp_path / "log").glob("*.log"))  # the others are prepared
        at = path.read_bytes().index(records_of(3)[12:])
        with path.open("r+b") as file:
            file.seek(at + 30)
            file.write(b"\xff")
        for first, last in ((3, 3), (3, 5)):
            with pytest.raises(InvalidRecordsError):
                entries_in(ask(bookie, read(first, last)))
        assert entries_in(ask(bookie, read(4, 5))) == [4, 5]
        assert ask(bookie, add(3, flags=Flag.RECOVERY)).status == ReplyStatus.OK
        assert entries_in(ask(bookie, read(0, 9))) == list(range(6))


@pytest.mark.parametrize(
    "settings",
    [
        {"durability": "never"},
        {"durability": "interval"},
        {"segment_bytes": 5},
        {"reserve_bytes": 2, "read_only_below_bytes": 1},
        {"read_only_below_bytes": -1},
        {"compact_below_percent": 101},
        {"long_polls_max": 0},
        {"collect_step_bytes": True},
        {"colour": 1},
    ],
)
def test_impossible_settings_of_a_bookie_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BookieConfig.of(settings)


# ---- a thread that waits commits itself -------------------------------------------------------------------------


class FastAnswer(Answer):
    """Of a plain ADD that the bookie's thread is not woken for, and the thread that it came to."""

    def __init__(self, bookie: LocalBookie, request: Request) -> None:
        self._come = threading.Event()
        self._replies: list[Reply] = []
        self.thread = 0
        fast = as_fast_add(request)
        assert fast is not None
        assert bookie.request_fast(fast, self._take, commits_here=True) == LATER

    def _take(self, reply: Reply) -> None:
        self.thread = threading.get_ident()
        super()._take(reply)


def test_a_thread_that_waits_syncs_and_has_its_reply(tmp_path: Path, files: Countless) -> None:
    with LocalBookie(tmp_path, config(), files=files) as bookie:
        ask(bookie, add(0))
        before = files.syncs
        answer = FastAnswer(bookie, add(1))
        assert bookie.has_work() and not answer.is_there
        bookie.commit_here()
        assert answer.is_there and answer.thread == threading.get_ident()
        assert answer.wait() == Reply(ReplyStatus.OK, 7, 1, 1, 0)
        assert files.syncs == before + 1 and not bookie.has_work()
        bookie.commit_here()
        assert files.syncs == before + 1, "nothing waits"


def test_the_bookies_thread_commits_what_a_thread_leaves_to_it(tmp_path: Path, files: Countless) -> None:
    with LocalBookie(tmp_path, config(), files=files) as bookie:
        ask(bookie, add(0))
        answer = FastAnswer(bookie, add(1))
        bookie.wake()
        assert answer.wait().status == ReplyStatus.OK and answer.thread != threading.get_ident()


def begin_sync(bookie: LocalBookie, files: Countless) -> threading.Thread:
    """Have another thread commit; its sync stands still until `files.go` is set."""
    files.go.clear()
    files.began.clear()
    thread = threading.Thread(target=bookie.commit_here)
    thread.start()
    assert files.began.wait(WAIT_S)
    return thread


def test_adds_during_a_sync_are_committed_by_the_next_sync(
    tmp_path: Path, files: Countless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit at a time; the bookie's thread is told of what arrived meanwhile."""
    monkeypatch.setattr("pyreplog.bookie.local_bookie._CHECK_SPACE_S", 10 * WAIT_S)
    with LocalBookie(tmp_path, config(), files=files) as bookie:
        ask(bookie, add(0))
        first = FastAnswer(bookie, add(1))
        thread = begin_sync(bookie, files)
        second = FastAnswer(bookie, add(2))
        other = threading.Thread(target=bookie.commit_here)
        other.start()
        other.join(SOON_S)
        assert not other.is_alive(), "it waits for the sync of another thread"
        bookie.wake()
        assert not first.is_there and not second.is_there
        files.go.set()
        assert first.wait().status == ReplyStatus.OK
        assert second.wait() == Reply(ReplyStatus.OK, 7, 2, 2, 1)
        thread.join(WAIT_S)
        assert entries_in(ask(bookie, read(0, 9))) == [0, 1, 2]


def test_closing_waits_for_the_thread_that_syncs(tmp_path: Path, files: Countless) -> None:
    bookie = LocalBookie(tmp_path, config(), files=files)
    ask(bookie, add(0))
    answer = FastAnswer(bookie, add(1))
    syncing = begin_sync(bookie, files)
    closing = threading.Thread(target=bookie.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive() and not answer.is_there
    files.go.set()
    closing.join(WAIT_S)
    syncing.join(WAIT_S)
    assert not closing.is_alive() and answer.wait().status == ReplyStatus.OK
    with LocalBookie(tmp_path, config()) as again:
        assert entries_in(ask(again, read(0, 9))) == [0, 1]


class Cycle:
    """What waits for a reply to an ADD, and keeps the ADD."""

    def __init__(self, bookie: LocalBookie, request: Request) -> None:
        self.fast = as_fast_add(request)
        assert self.fast is not None
        assert bookie.request_fast(self.fast, self.take, commits_here=True) == LATER

    def take(self, reply: Reply) -> None:
        assert reply.status == ReplyStatus.OK


def test_an_add_in_a_cycle_releases_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may clear the ADD before the view that its records are."""
    failures: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    with LocalBookie(tmp_path, config()) as bookie:
        ask(bookie, add(0))
        for entry in range(1, 20):
            request = add(entry)
            records = bytearray(request.records)
            Cycle(bookie, request._replace(records=memoryview(records)))
            bookie.commit_here()
            del request
            gc.collect()
            records.append(0)  # nothing has a view of it
    assert not failures
