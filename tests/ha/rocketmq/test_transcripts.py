"""Recorded sessions of RocketMQ, byte by byte: each machine sends what RocketMQ sent, or closes where RocketMQ accepted
an absurd value."""

from __future__ import annotations

import pytest

from .replay import FOLDER, MasterReplay, SlaveReplay, Transcript

PATHS = sorted(FOLDER.glob("*.txt"))


def of(side: str) -> list[str]:
    return [path.stem for path in PATHS if side in Transcript(path).sides]


def load(name: str) -> Transcript:
    return Transcript(FOLDER / f"{name}.txt")


def test_transcripts_of_masters_and_slaves_exist() -> None:
    assert len(of("M")) >= 16
    assert len(of("S")) >= 13
    assert {"empty-master", "restarted-slave", "session"} <= {*of("M")} & {*of("S")}  # the sessions that were recorded


@pytest.mark.parametrize("name", of("M"))
def test_master_sends_the_recorded_bytes(name: str) -> None:
    transcript = load(name)
    replay = MasterReplay(transcript)
    replay.run()
    assert replay.sent == transcript.sent("M")


@pytest.mark.parametrize("name", of("S"))
def test_slave_sends_the_recorded_bytes(name: str) -> None:
    transcript = load(name)
    replay = SlaveReplay(transcript)
    replay.run()
    assert replay.sent == transcript.sent("S")


@pytest.mark.parametrize("name", of("S"))
def test_our_slave_has_what_the_master_sent(name: str) -> None:
    """The bytes that were appended are contiguous, and end where the last report says."""
    replay = SlaveReplay(load(name))
    replay.run()
    reports = [words for words in replay.sent if words]
    assert int.from_bytes(reports[-1][-8:], "big") == replay.pulling.end
    positions = sorted(replay.landed)
    assert positions == list(range(positions[0], positions[0] + len(positions))) if positions else True


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ack-beyond-the-end", "found 1099511627776"),
        ("ack-of-the-unsent", "what it had, and was sent"),
        ("negative-ack", "found -1"),
        ("ack-rewound", "what it had, and was sent"),
        ("start-beyond-the-end", "where this log ends"),
        ("negative-start", "found -1"),
        ("stray-byte", "found 72057594037927953"),
        ("silent-slave", "silent for 20 s"),
    ],
)  # fmt: skip
def test_master_closes_with_the_expected_error(name: str, why: str) -> None:
    replay = MasterReplay(load(name))
    replay.run()
    assert why in str(replay.feeding.error)


@pytest.mark.parametrize("name", of("M"))
def test_recorded_progress_only_ascends_and_never_exceeds_the_sent_position(name: str) -> None:
    """Progress only ascends, and never exceeds what was sent."""
    replay = MasterReplay(load(name))
    replay.run()
    assert replay.progress == sorted(replay.progress)
    assert all(offset <= (replay.feeding.next or 0) for offset in replay.progress)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mismatch", "expected offset"),
        ("mismatched-heartbeat", "expected offset"),
        ("oversize", "at most 4194292 bytes"),
        ("negative-size", "as i32: -1"),
        ("frame-across-files", "crosses the end of a file"),
        ("silent-master", "silent for 20"),
        ("reconnect-mid-frame", "closed the connection"),
    ],
)
def test_slave_closes_with_the_expected_error(name: str, why: str) -> None:
    replay = SlaveReplay(load(name))
    replay.run()
    assert why in str(replay.pulling.error)
