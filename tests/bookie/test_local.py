"""LocalBookie: real logs, threads, group commit, restarts, and the order of syncs and replies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local import LocalBookie
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request
from pyreplog.errors import ClosedError, ConfigError, InvalidRecordsError, LockedError
from pyreplog.log.files import RealFiles
from tests.bookie.asking import ANY_SPACE, OTHER_KEY, add, entries_in, last, read, records_of, set_lac, wait_lac

WAIT_S = 60.0
DURABILITIES = ("appended", "synced")


class Countless(RealFiles):
    """Notes every sync; holds them back, or fails them, if told to."""

    def __init__(self) -> None:
        self.syncs = 0
        self.go = threading.Event()
        self.go.set()
        self.failing = False

    def _synced(self) -> None:
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
def test_all_that_was_said_survives_a_restart(durability: str, tmp_path: Path) -> None:
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


def test_one_sync_serves_all_who_came_while_another_ran(tmp_path: Path, files: Countless) -> None:
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


def test_many_threads(tmp_path: Path) -> None:
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
def test_bad_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BookieConfig.of(settings)
