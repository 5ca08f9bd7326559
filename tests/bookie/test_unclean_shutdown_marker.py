"""A power cut takes the end of a log, and nothing in the log says so: the mark beside it does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.bookie.opening import open_bookie
from pyreplog.bookie.protocol import Flag, ReplyStatus
from pyreplog.log import housekeeper, unclean_shutdown_marker
from pyreplog.log.unclean_shutdown_marker import NAME
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.sqlite import SQLiteStore
from tests import running
from tests.bookie.asking import ANY_SPACE, Facts, add, entries_in, last, read
from tests.bookie.test_local import ask
from tests.crash.disk import Disk, PowerCutFiles
from tests.crash.process import in_process

APPENDED, SYNCED = (
    BookieConfig.of({"durability": word, "segment_bytes": 64 << 10, **ANY_SPACE}) for word in ("appended", "synced")
)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as memory_store:
        yield memory_store


@pytest.fixture
def path(ram_path: Path) -> Path:
    return ram_path / "bookie"


def opened(path: Path, store: MemoryStore, facts: Facts, config: BookieConfig = APPENDED) -> LocalBookie:
    return open_bookie(path, "b1", store, config, ledgers=facts)[1]


def reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unclean_shutdown_marker, "boot_id", lambda: b"another boot of it")


def copied(bookie: LocalBookie) -> Path:
    """What the disk holds of a bookie that runs."""
    return running.copied(bookie.log.log.commit_log, bookie.path, bookie.path.with_name("copy"))


def cut_power(bookie: LocalBookie, disk: Path) -> None:
    bookie.close()
    shutil.rmtree(bookie.path)
    shutil.move(disk, bookie.path)


def test_a_tail_that_is_cleanly_lost_is_unknown(
    path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = opened(path, store, Facts())
    disk = copied(bookie)
    assert ask(bookie, add(0, 1, flags=Flag.UNSYNCED)).status == ReplyStatus.OK
    cut_power(bookie, disk)
    reboot(monkeypatch)
    facts = Facts(7)
    bookie = opened(path, store, facts)
    assert bookie.log.cut_records == 0 and facts.asked == [True]
    assert [ask(bookie, read(0, 9, ledger=ledger)).status for ledger in (7, 8)] == [ReplyStatus.LIMBO, ReplyStatus.OK]
    bookie.close()


def test_the_marker_stays_until_limbo_was_entered(
    path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark stays as it is until the ledgers are in limbo: a start that fails before is no start."""

    class Away(Facts):
        def open_with(self, bookie: str, *, unsynced: bool) -> tuple[int, ...]:
            raise OSError("no metadata")

    bookie = opened(path, store, Facts())
    cut_power(bookie, copied(bookie))
    reboot(monkeypatch)
    for _ in range(2):
        with pytest.raises(OSError, match="no metadata"):
            opened(path, store, Away())
    bookie = opened(path, store, Facts(7))
    assert ask(bookie, last()).status == ReplyStatus.LIMBO
    bookie.close()


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_restart_without_a_power_cut_puts_no_ledger_into_limbo(
    end: str, path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed leaves its entries in the page cache; one that closed, on the disk."""
    bookie = opened(path, store, Facts())
    ask(bookie, add(0, flags=Flag.UNSYNCED))
    disk = copied(bookie)
    if end == "killed":
        cut_power(bookie, disk)
    else:
        bookie.close()
        assert not (path / NAME).exists()
        reboot(monkeypatch)
    facts = Facts(7)
    bookie = opened(path, store, facts)
    assert facts.asked == [] and entries_in(ask(bookie, read(0, 9))) == [0]
    assert (path / NAME).exists()
    bookie.close()


def test_a_synced_bookie_leaves_no_mark_and_honours_that_of_an_earlier_life(
    path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = opened(path, store, Facts())
    cut_power(bookie, copied(bookie))
    reboot(monkeypatch)
    bookie = opened(path, store, Facts(7), SYNCED)
    assert ask(bookie, last()).status == ReplyStatus.LIMBO and not (path / NAME).exists()
    bookie.close()


def test_a_damaged_mark_is_one_of_another_boot(path: Path, store: MemoryStore) -> None:
    opened(path, store, Facts()).close()
    (path / NAME).write_bytes(b"")
    facts = Facts(7)
    opened(path, store, facts).close()
    assert facts.asked == [True]


def test_the_mark_stays_when_the_last_sync_fails(
    path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = opened(path, store, Facts())
    monkeypatch.setattr(type(bookie), "_sync", lambda self: OSError("the disk failed"))
    ask(bookie, add(0, flags=Flag.UNSYNCED))
    monkeypatch.setattr(bookie._bookie, "sync", lambda: OSError("the disk failed"))
    bookie.close()
    assert (path / NAME).exists()


# ---- on a disk that forgets what was not synced ----------------------------------------------------------------


def live(root: Path, target: Path, metadata: Path, seed: str, said: Path) -> None:
    """In a process of its own: a bookie is opened, made at first, and acknowledges entries, until the power goes."""
    housekeeper.THREADS = False
    rng = Random(seed)
    disk = Disk(root, target, rng, cut_at=rng.randint(1, 150))
    disk.share = rng.choice((None, 0.0, 0.0))
    with SQLiteStore(metadata) as store:
        _, bookie = open_bookie(
            root / "b1", "b1", store, APPENDED, ledgers=Facts(7, 8), make_new=True, files=PowerCutFiles(disk)
        )
        entry = 1 + max(map(int, said.read_text().split()), default=-1)
        with said.open("a", buffering=1) as file:
            while True:
                if (
                    ask(bookie, add(entry, flags=Flag.UNSYNCED | Flag.RECOVERY, mark=b"." * 900)).status
                    == ReplyStatus.OK
                ):
                    print(entry, file=file)
                entry += 1
                if rng.random() < 0.2:
                    ask(bookie, last(ledger=8, fence=True))


def test_whenever_the_power_goes_nothing_acknowledged_is_denied(
    ram_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 0
    for run in range(12):
        folder = ram_path / str(run)
        (home := folder / "0").mkdir(parents=True)
        (said := folder / "said").touch()
        for number in range(1, 3):
            target, drawn = folder / str(number), f"{seed} {run} {number}"
            with monkeypatch.context() as patch:
                patch.setattr(unclean_shutdown_marker, "boot_id", lambda: b"boot %10d" % number)  # noqa: B023
                assert in_process(
                    lambda: live(home, target, folder / "metadata", drawn, said), folder / "report"  # noqa: B023
                )  # fmt: skip
            home = target
        entries = [int(word) for word in said.read_text().split()]
        with SQLiteStore(folder / "metadata") as store:
            _, bookie = open_bookie(home / "b1", "b1", store, APPENDED, ledgers=Facts(7, 8), make_new=True)
            for entry in entries:
                reply = ask(bookie, read(entry, entry))
                assert reply.status == ReplyStatus.LIMBO or entries_in(reply) == [entry]
                lost += reply.status == ReplyStatus.LIMBO
            bookie.close()
    assert lost, "the disk has kept everything: nothing was tried"
