"""The bare limit of a ledger does the work that it is measured for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.entries import make_values
from benchmarks.ledgers import long_stride
from benchmarks.limits import quorum

SIZE = 100
LOG_BYTES = 1 << 20
HEADER = 4096
VALUES = make_values(SIZE)


class Bookies:
    """Bare bookies in threads of this process."""

    def __init__(self, folder: Path, count: int, *, spin: bool) -> None:
        self.paths = [folder / str(number) for number in range(count)]
        self.logs: list[quorum.Log] = []
        self.ends: list[socket.socket] = []
        self.errors: list[OSError] = []
        self._threads: list[threading.Thread] = []
        for path in self.paths:
            path.write_bytes(bytes(LOG_BYTES))
            with path.open("r+b") as file:
                log = quorum.Log(file.fileno(), LOG_BYTES, synced=False)
            self.logs.append(log)
            ours, theirs = socket.socketpair()
            self.ends.append(ours)
            thread = threading.Thread(target=self._serve, args=(log, theirs, spin))
            self._threads.append(thread)
            thread.start()

    def _serve(self, log: quorum.Log, stream: socket.socket, spin: bool) -> None:
        with stream:
            try:
                log.serve(stream.fileno(), spin=spin)
            except OSError as error:
                self.errors.append(error)

    def close(self) -> None:
        for end in self.ends:
            end.close()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(count: int, *, spin: bool = False) -> Bookies:
            bookies = Bookies(tmp_path, count, spin=spin)
            stack.callback(bookies.close)
            return bookies

        yield make


def client(bookies: Bookies, **settings: Any) -> quorum.Client:
    options = {"quorum": 2, "batch": 16, "window": 1 << 18} | settings
    return quorum.Client([end.fileno() for end in bookies.ends], quorum.Values(VALUES), **options)


@pytest.mark.parametrize("settings", [{}, {"in_turn": True}, {"spin": True}, {"window": 16 * long_stride(SIZE)}])
def test_every_bookie_has_every_record(bench: Any, settings: dict[str, Any]) -> None:
    bookies = bench(3, spin=settings.get("spin", False))
    appends = client(bookies, **settings)
    laps = 3 * LOG_BYTES // (16 * long_stride(SIZE))  # the logs go round
    seconds, taken = appends.append(laps)
    assert len(taken) == laps
    assert 0 < min(taken) <= max(taken) <= seconds * 1e9
    appends.append(1)
    bookies.close()
    assert bookies.errors == []
    for log in bookies.logs:
        assert log.records == (laps + 1) * 16
        assert 0 < log.check(quorum.Values(VALUES)) <= LOG_BYTES // long_stride(SIZE)
        with pytest.raises(ValueError, match="not what was written"):
            log.check(quorum.Values(VALUES[::-1]))


@pytest.mark.parametrize("offset", [0, 4, 14, 24, 64, 163])
def test_a_damaged_record_in_the_log_is_noticed(bench: Any, offset: int) -> None:
    bookies = bench(1)
    client(bookies, quorum=1).append(1)
    bookies.close()
    with bookies.paths[0].open("r+b") as file:
        file.seek(HEADER + 3 * long_stride(SIZE) + offset)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x40]))
    with pytest.raises(ValueError, match="not what was written"):
        bookies.logs[0].check(quorum.Values(VALUES))


def test_a_bookie_refuses_a_damaged_record(bench: Any) -> None:
    bookies = bench(1)
    sent = bytes(8) + long_stride(SIZE).to_bytes(4, "little") + b"\x07" * long_stride(SIZE)
    bookies.ends[0].sendall(sent)
    bookies.close()
    (error,) = bookies.errors
    assert "EBADMSG" in str(error)
    assert bookies.logs[0].records == 0


def test_a_bookie_that_goes_ends_the_client(bench: Any) -> None:
    bookies = bench(2)
    appends = client(bookies)
    bookies.ends[1].shutdown(socket.SHUT_RDWR)
    with pytest.raises(OSError, match="bare limit of a ledger"):
        appends.append(4)


def test_a_window_holds_a_batch(bench: Any) -> None:
    bookies = bench(1)
    with pytest.raises(ValueError, match="holds no batch"):
        client(bookies, quorum=1, window=100)
    with pytest.raises(ValueError, match="quorum of them"):
        client(bookies, quorum=2)
    with pytest.raises(ValueError, match="power of two"):
        quorum.Values(VALUES[:3])


def test_synced_bytes_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(LOG_BYTES))
    ours, theirs = socket.socketpair()
    with path.open("r+b") as file, ours, theirs:
        log = quorum.Log(file.fileno(), LOG_BYTES, synced=True)
        bookie = threading.Thread(target=log.serve, args=(theirs.fileno(),))
        bookie.start()
        quorum.Client([ours.fileno()], quorum.Values(VALUES), quorum=1, batch=256, window=1 << 18).append(30)
        ours.shutdown(socket.SHUT_WR)
        bookie.join(30)
        assert not bookie.is_alive()
        assert log.records == 30 * 256
        assert log.check(quorum.Values(VALUES)) > 0
    assert VALUES[0] in path.read_bytes()
