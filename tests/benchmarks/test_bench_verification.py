"""A benchmark whose work was not done must fail: what is read back is really compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import pyreplog
from benchmarks.entries import in_turn, make_values, verify
from benchmarks.logs import recycled
from benchmarks.peers import PEERS, Pyreplog, Work, load
from benchmarks.peers.contest import Loaded, Writer, compare
from benchmarks.plan import Plan
from benchmarks.sampling import interleave

VALUES = make_values(100)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pyreplog, "segment_bytes", 1 << 20)


def test_a_log_with_every_value_is_verified(tmp_path: Path) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16) as log:
        log.append_batch(in_turn(VALUES, 1000))
        assert verify(log, VALUES, 1000) == "1,000 entries"
        log.trim(700)
        assert verify(log, VALUES, 1000).endswith("of 1,000 entries")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda entries: entries[:-1],
        lambda entries: [*entries[:-2], *entries[:1], *entries[-1:]],
        lambda entries: entries[::-1],
    ],
    ids=["one missing", "one replaced", "order"],
)
def test_a_log_that_lacks_values_fails_verification(
    tmp_path: Path, spoil: Callable[[list[bytes]], list[bytes]]
) -> None:
    with pyreplog.open(tmp_path / "log", segment_bytes=1 << 16) as log:
        log.append_batch(spoil(in_turn(VALUES, 1000)))
        with pytest.raises(ValueError, match="written"):
            verify(log, VALUES, 1000)


def test_recycled_log_reaches_a_state_without_new_files(tmp_path: Path) -> None:
    with recycled(Plan.tiny(tmp_path), 100) as ours:
        assert ours.log.start > 0, "retention has removed segments"
        assert ours.written == ours.log.end
        assert f"of {ours.written:,} entries" in ours.verified()


@pytest.mark.parametrize("name", PEERS)
def test_peer_gives_back_what_it_was_given(tmp_path: Path, name: str) -> None:
    peer = PEERS[name](tmp_path, synced=False)
    try:
        assert PEERS[name].version()
        loaded = Loaded(peer, VALUES, 256, 10.0)
        assert loaded.count == 256
        assert loaded.scan() > 0
        if Work.READ in peer.work:
            assert loaded.read() > 0
        else:
            with pytest.raises(NotImplementedError, match="in order only"):
                peer.reader()
        assert peer.disk_bytes(tmp_path)[0] >= 25600
        peer.append(VALUES[1])  # not the one whose turn it is
        with pytest.raises(ValueError, match="entry 256 is not what was written"):
            compare(peer, VALUES)
    finally:
        peer.close()


@pytest.mark.parametrize("name", PEERS)
def test_peer_continues_where_it_was_closed(tmp_path: Path, name: str) -> None:
    for times in (1, 2):
        peer = PEERS[name](tmp_path, synced=True)
        try:
            for value in VALUES:
                peer.append(value)
            assert compare(peer, VALUES) == times * len(VALUES)
        finally:
            peer.close()


def test_writer_notices_a_lost_entry(tmp_path: Path) -> None:
    peer = PEERS["PlainFile"](tmp_path, synced=False)
    writer = Writer(peer, VALUES, 0.001)
    writer.append(1)
    writer.append(16)
    assert writer.verify() == writer.written > 0
    writer.written += 1
    with pytest.raises(ValueError, match="entries are left"):
        writer.verify()
    peer.close()


def test_load_stops_when_the_time_is_over(tmp_path: Path) -> None:
    peer = PEERS["PlainFile"](tmp_path, synced=False)
    assert len(load(peer, VALUES, 1 << 40, 0.0)) == 256
    peer.close()


def test_sides_take_turns_in_alternating_order(tmp_path: Path) -> None:
    turns: list[str] = []

    def side(name: str) -> Callable[[], float]:
        def run() -> float:
            turns.append(name)
            return float(len(turns))

        return run

    rounds = interleave(Plan(directory=tmp_path, budget=0.0, rounds=3), {"a": side("a"), "b": side("b")})
    assert "".join(turns) == "ab" + "ab" + "ba" + "ab", "the first round is not counted"
    assert rounds == {"a": 6.0, "b": 5.0}
