"""Garbage collection on a real log (47): what comes back, what stays, and what a crash at any step leaves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from pyreplog.bookie.bookie import Bookie
from pyreplog.bookie.collector import Collector
from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.entry_log import DiskLog
from pyreplog.bookie.ledger_list import ClosedLedgerHoldings
from pyreplog.bookie.protocol import Flag, Reply, ReplyStatus, Request
from pyreplog.errors import DiskFullError, InvalidMetadataError, InvalidRecordsError, MetadataUnavailableError
from pyreplog.log.files import RealFiles
from tests.bookie.asking import ANY_SPACE, OTHER_KEY, add, entries_in, last, read, set_lac

SEGMENT = 64 << 10
CONFIG = BookieConfig.of(
    {"durability": "appended", "segment_bytes": SEGMENT, "collect_step_bytes": 8 << 10, **ANY_SPACE}
)
PADDING = b"." * 3000


class Ledgers:
    """Metadata that a test writes."""

    def __init__(self, *number: int) -> None:
        self.there = set(number)
        self.known = True
        self.unlisted: set[int] = set()
        self.held: dict[int, list[range]] = {}  # of closed ones

    def knows_this_bookie(self) -> bool:
        return self.known

    def listed(self) -> set[int]:
        return self.there - self.unlisted

    def exists(self, ledger: int) -> bool:
        return ledger in self.there

    def holdings(self, ledger: int) -> list[range] | None:
        return self.held.get(ledger)

    def closed(self, ledgers: Sequence[int]) -> list[ClosedLedgerHoldings | None]:
        """Surplus has tests of its own."""
        return [None for _ in ledgers]

    def change_version(self, ledger: int, version: int) -> bool:
        raise AssertionError("nothing is closed")

    def keeps_surplus(self, ledger: int, bookies: Collection[str]) -> bool:
        raise AssertionError("nothing is closed")


class Node:
    """A bookie over a directory, and its collector."""

    def __init__(
        self, path: Path, ledgers: Ledgers, *, files: RealFiles | None = None, config: BookieConfig = CONFIG
    ) -> None:
        self.log = DiskLog(path, config, files=files)
        self.bookie = Bookie(self.log, config)
        self.collector = Collector(self.log, config, ledgers, lambda call: call(self.bookie))

    def ask(self, request: Request) -> Reply:
        replies: list[Reply] = []
        self.bookie.handle(request, replies.append)
        self.bookie.commit()
        (reply,) = replies
        return reply

    def fill(self, *ledgers: int, entries: range) -> None:
        for entry in entries:
            for ledger in ledgers:
                assert self.ask(add(entry, ledger=ledger, mark=PADDING)).status == ReplyStatus.OK

    def whole(self) -> list[int]:
        """Bases of the sealed segments that hold anything."""
        return [base for base, shares in self.log.log.segments() if shares]

    def close(self) -> None:
        self.log.close()


def found_in(node: Node, ledger: int) -> list[int]:
    actual, at = [], 0
    while at <= 200:
        reply = node.ask(read(at, 200, ledger=ledger))
        actual += entries_in(reply)
        at = reply.last + 1
    return actual


def test_deleted_ledgers_space_comes_back_and_live_ones_stay(tmp_path: Path) -> None:
    ledgers = Ledgers(1, 2, 3)
    node = Node(tmp_path / "log", ledgers)
    node.fill(1, entries=range(60))  # segments of its own
    node.fill(2, 3, entries=range(60))
    node.ask(last(ledger=3, fence=True))
    node.ask(set_lac(99, ledger=2))
    before = node.whole()
    node.collector.collect()
    assert node.whole() == before and node.log.log.start_position == 0, "nothing was deleted"
    ledgers.there.remove(1)
    node.collector.collect()
    assert node.log.log.start_position > 0 and len(node.whole()) < len(before), "the front is trimmed"
    ledgers.there.remove(2)
    node.collector.collect()
    assert node.ask(last(ledger=1)).status == node.ask(last(ledger=2)).status == ReplyStatus.REFUSED
    assert found_in(node, 3) == list(range(60))
    node.close()
    again = Node(tmp_path / "log", ledgers)
    assert found_in(again, 3) == list(range(60)) and found_in(again, 1) == []
    assert again.ask(add(60, ledger=3)).status == ReplyStatus.FENCED
    assert again.ask(last(ledger=3, fence=True, key=OTHER_KEY)).status == ReplyStatus.UNAUTHORIZED
    again.close()


def test_controls_outlive_the_segments_they_lay_in(tmp_path: Path) -> None:
    """Also when nothing else of their ledger was there; the newest LAC counts, not one copied forward."""
    ledgers = Ledgers(1, 2, 3)
    node = Node(tmp_path / "log", ledgers)
    node.ask(last(ledger=2, fence=True))
    node.ask(set_lac(5, ledger=3))
    node.fill(1, entries=range(40))
    node.ask(set_lac(9, ledger=3))
    node.fill(1, entries=range(40, 80))
    ledgers.there.remove(1)
    node.collector.collect()
    assert node.whole() == []
    node.close()
    again = Node(tmp_path / "log", ledgers)
    assert again.ask(add(0, ledger=2)).status == ReplyStatus.FENCED
    assert again.ask(last(ledger=3)).lac == 9
    assert again.ask(set_lac(1, ledger=3, key=OTHER_KEY)).status == ReplyStatus.UNAUTHORIZED
    again.close()


def test_a_segment_that_is_sealed_while_the_front_is_trimmed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = Ledgers(2)
    node = Node(tmp_path / "log", ledgers)
    node.fill(1, entries=range(25))
    assert node.whole() == [0], "one to trim, and nothing behind it but the active one"
    looks, look = [], node.log.log.segments

    def look_and_go_on() -> object:
        looks.append(look())
        if len(looks) == 2:  # the one before trimming
            node.fill(2, entries=range(100))
        return looks[-1]

    monkeypatch.setattr(node.log.log, "segments", look_and_go_on)
    node.collector.collect()
    assert len(looks) == 2 and node.collector.trimmed == 1
    assert found_in(node, 2) == list(range(100))
    node.close()


def test_ledger_is_collected_only_when_every_proof_of_its_deletion_agrees(tmp_path: Path) -> None:
    """#4607: a log whose header named none of its ledgers was deleted with live ones in it."""
    ledgers = Ledgers(1, 2)
    node = Node(tmp_path / "log", ledgers)
    node.fill(1, entries=range(60))

    def kept() -> bool:
        node.collector.collect()
        return node.log.log.start_position == 0 and node.ask(last(ledger=1)).status == ReplyStatus.OK

    ledgers.unlisted = {1}
    assert kept(), "the listing missed it, a direct look finds it"
    ledgers.there, ledgers.known = set(), False
    assert kept(), "metadata that knows nothing of us was wiped, or is another's"
    ledgers.known = True
    assert not kept()
    node.close()


def test_a_ledger_that_came_after_the_look_around_is_not_taken_for_deleted(tmp_path: Path) -> None:
    class Late(Ledgers):
        def listed(self) -> set[int]:
            node.fill(9, entries=range(30))
            return super().listed()

        def exists(self, ledger: int) -> bool:
            assert ledger != 9
            return super().exists(ledger)

    node = Node(tmp_path / "log", Late(1))
    node.fill(1, entries=range(30))
    node.collector.collect()
    assert node.ask(last(ledger=9)).last == 29
    node.close()


def test_metadata_that_fails_collects_nothing_and_the_next_round_does(tmp_path: Path) -> None:
    class Failing(Ledgers):
        failing = True

        def exists(self, ledger: int) -> bool:
            if self.failing:
                raise MetadataUnavailableError("out of reach")
            return super().exists(ledger)

    ledgers = Failing()
    node = Node(tmp_path / "log", ledgers)
    node.fill(1, entries=range(60))
    with pytest.raises(MetadataUnavailableError):
        node.collector.collect()
    assert node.ask(last(ledger=1)).last == 59
    ledgers.failing = False
    node.collector.collect()
    assert node.whole() == []
    node.close()


def test_steps_are_bounded_and_the_bookie_serves_between_them(tmp_path: Path) -> None:
    ledgers = Ledgers(1, 2)
    node = Node(tmp_path / "log", ledgers)
    node.fill(2, entries=range(3))
    node.fill(1, entries=range(30))
    node.fill(2, entries=range(3, 6))
    node.fill(1, entries=range(30, 60))
    ledgers.there.remove(1)
    entry, steps = 6, 0
    before = node.log.log.end_position
    while node.collector.step():
        steps += 1
        copied = node.log.log.end_position - before
        assert copied <= CONFIG.collect_step_bytes + SEGMENT, "a step may roll the log"
        node.fill(2, entries=range(entry, entry + 1))
        entry += 1
        assert found_in(node, 2) == list(range(entry))
        before = node.log.log.end_position
    assert steps > 3
    node.close()


def test_mostly_live_segments_stay(tmp_path: Path) -> None:
    ledgers = Ledgers(1, 2)
    node = Node(tmp_path / "log", ledgers)
    for entry in range(30):
        node.fill(1, entries=range(3 * entry, 3 * entry + 3))
        node.fill(2, entries=range(entry, entry + 1))
    ledgers.there.remove(2)
    before = node.whole()
    node.collector.collect()
    assert node.whole() == before and found_in(node, 1) == list(range(90))
    node.close()


def test_a_damaged_live_record_keeps_its_segment_and_no_other(tmp_path: Path) -> None:
    """#4544: one bad segment must not stop collection, and is not thrown away. Another one has more in it, so it comes
    later."""
    ledgers = Ledgers(1, 2)
    node = Node(tmp_path / "log", ledgers)
    node.fill(2, entries=range(2))
    node.fill(1, entries=range(30))
    node.fill(2, entries=range(2, 5))
    node.fill(1, entries=range(30, 60))
    ledgers.there.remove(1)
    path = min((tmp_path / "log").glob("*.log"))
    data = path.read_bytes()
    at = data.index(b"2/1" + PADDING)
    with path.open("r+b") as file:
        file.seek(at + 50)
        file.write(b"!")
    node.collector.collect()
    assert node.whole() == [0]
    assert entries_in(node.ask(read(0, 0, ledger=2))) == [0]
    with pytest.raises(InvalidRecordsError):
        entries_in(node.ask(read(1, 1, ledger=2)))
    assert node.ask(add(1, ledger=2, mark=PADDING, flags=Flag.RECOVERY)).status == ReplyStatus.OK
    assert found_in(node, 2) == [0, 1, 2, 3, 4]
    node.close()


# ---- limbo -----------------------------------------------------------------------------------------------------


def in_limbo(tmp_path: Path, *entries: int) -> tuple[Node, Ledgers]:
    """Ledger 7 with these entries, since an earlier life."""
    ledgers = Ledgers(7, 8)
    node = Node(tmp_path, ledgers)
    node.ask(add(0, ledger=8))
    for entry in entries:
        node.ask(add(entry))
    node.bookie.limbo.enter([7])
    node.close()
    return Node(tmp_path, ledgers), ledgers


def test_limbo_ends_when_the_ledger_is_closed_and_all_its_copies_are_here(tmp_path: Path) -> None:
    node, ledgers = in_limbo(tmp_path, 0, 1, 3, 4)
    node.collector.collect()
    assert node.bookie.limbo.ledgers == [7], "it is not closed"
    ledgers.held[7] = [range(0, 6, 3), range(1, 6, 3)]
    node.ask(last(ledger=7))
    for missing in (range(2, 3), range(5, 6), range(5)):
        ledgers.held[7].append(missing)
        node.collector.collect()
        assert node.bookie.limbo.ledgers == [7], f"{missing} is not here"
        assert node.ask(last()).status == ReplyStatus.LIMBO
        ledgers.held[7].pop()
    assert node.ask(add(9)).status == ReplyStatus.UNKNOWN, "the writer may have been fenced"
    node.collector.collect()
    assert node.bookie.limbo.ledgers == [] and node.ask(last()).last == 4
    assert node.ask(add(9)).status == ReplyStatus.FENCED, "that may have been lost, and it is closed"
    node.close()
    again = Node(tmp_path, ledgers)
    again.collector.collect()
    assert again.bookie.limbo.ledgers == [] and again.ask(add(9)).status == ReplyStatus.FENCED
    again.close()


def test_limbo_stays_when_the_metadata_make_no_sense(tmp_path: Path) -> None:
    class Garbled(Ledgers):
        def holdings(self, ledger: int) -> list[range] | None:
            raise InvalidMetadataError("nonsense")

    in_limbo(tmp_path, 0)[0].close()
    node = Node(tmp_path, Garbled(7, 8))
    node.bookie.limbo.enter([8])
    node.collector.collect()
    assert node.bookie.limbo.ledgers == [7, 8]
    node.close()


def test_limbo_stays_while_the_disk_is_full_and_garbage_is_collected_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, ledgers = in_limbo(tmp_path, 0)
    ledgers.held[7] = [range(1)]

    def fail(ledger: int) -> None:
        raise DiskFullError(28, "full")

    with monkeypatch.context() as patch:
        patch.setattr(node.bookie.limbo, "leave", fail)
        node.collector.collect()
        assert node.bookie.limbo.ledgers == [7]
    node.collector.collect()
    assert node.bookie.limbo.ledgers == []
    node.close()
