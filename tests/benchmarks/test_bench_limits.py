"""The bare limits do the work that they are measured for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.entries import make_values, stride
from benchmarks.limits import bare, build, calls

SIZE = 1 << 20
HEADER = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "area"
    path.write_bytes(bytes(SIZE))
    return path


@pytest.fixture
def area(path: Path) -> Iterator[bare.Area]:
    with path.open("r+b") as file:
        area = bare.Area(file.fileno(), SIZE)
        area.populate()
        yield area
        area.close()


@pytest.mark.parametrize("size", [100, 1024, 65536])
def test_encoded_records_are_read_back(area: bare.Area, size: int) -> None:
    values = bare.Values(make_values(size))
    count = (SIZE - HEADER) // stride(size)
    area.encode(values, count + 3, 1)  # goes round
    assert area.check_encoded(values) == 3
    assert area.scan(HEADER, HEADER + count * stride(size)) == count
    assert area.build(HEADER, HEADER + count * stride(size)) == count


def test_bare_copies_are_read_back(area: bare.Area) -> None:
    values = bare.Values(make_values(100))
    area.copy(values, 50)
    assert area.check_copied(values) == 50
    with pytest.raises(ValueError, match="not what was written"):
        area.check_copied(bare.Values(make_values(100)[::-1]))


@pytest.mark.parametrize("offset", [0, 4, 14, 20, 32, 131])
def test_a_damaged_record_is_noticed(area: bare.Area, path: Path, offset: int) -> None:
    values = bare.Values(make_values(100))
    area.encode(values, 10, 256)
    with path.open("r+b") as file:
        file.seek(HEADER + 3 * stride(100) + offset)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x40]))
    with pytest.raises(ValueError, match="not what was written"):
        area.check_encoded(values)


def test_values_have_one_size_and_a_power_of_two_of_them() -> None:
    with pytest.raises(ValueError, match="one size"):
        bare.Values([b"a", b"bc"])
    with pytest.raises(ValueError, match="power of two"):
        bare.Values([b"a", b"b", b"c"])


def test_synced_writes_lie_one_behind_the_other(path: Path) -> None:
    with path.open("r+b") as file:
        taken = bare.synced_writes(file.fileno(), b"abc", 10, 4)
    assert len(taken) == 4
    assert min(taken) > 0
    assert path.read_bytes()[:24] == bytes(10) + b"abc" * 4 + bytes(2)


def test_a_write_that_fails_is_an_error(path: Path) -> None:
    with path.open("rb") as file, pytest.raises(OSError, match="EBADF"):
        bare.synced_writes(file.fileno(), b"abc", 0, 1)


def test_futex_bell_wakes_a_sleeping_thread(path: Path) -> None:
    with path.open("r+b") as file:
        bell, other = bare.Bell(file.fileno()), bare.Bell(file.fileno())
    heard: list[int] = []
    listener = threading.Thread(target=lambda: heard.extend([other.hear(0), other.hear(1)]))
    listener.start()
    bell.ring()
    bell.ring()
    listener.join(30)
    assert not listener.is_alive()
    assert len(heard) == bell.rung == 2


def test_the_stopwatch_counts_every_call() -> None:
    empty = calls.Empty()
    watch = calls.Stopwatch(empty.append)
    assert [watch.time(b"x") for _ in range(1000)] == list(range(1, 1001))
    assert watch.count == 999, "the last one is known when the next begins"
    watch.pause()
    assert watch.count == 1000
    assert 0 < watch.quantile(0.1) <= watch.quantile(0.5) <= watch.quantile(0.9999)
    watch.reset()
    assert watch.count == 0


def test_the_stopwatch_measures_the_call() -> None:
    event = threading.Event()
    watch = calls.Stopwatch(lambda _: event.wait(0.002))
    for _ in range(3):
        watch.time(b"")
    watch.pause()
    assert watch.quantile(0.5) >= 2e6


def test_the_stopwatch_counts_a_pause_to_the_call_before_it() -> None:
    event = threading.Event()
    watch = calls.Stopwatch(calls.Empty().append)
    watch.time(b"")
    event.wait(0.002)  # as if another thread had taken the GIL
    watch.time(b"")
    watch.pause()
    assert watch.quantile(0.99) >= 2e6


def test_an_exception_of_the_call_comes_through() -> None:
    watch = calls.Stopwatch(calls.Empty().append)
    with pytest.raises(TypeError):
        watch.time(None)


def test_two_processes_build_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ends last uses what the other has built."""
    builds: list[Path] = []

    def build_one(name: str, sources: object, scratch: Path, made: Path) -> None:
        if not builds:
            builds.append(made)
            builds.append(build.built())  # the other process
        (made / name).write_bytes(b"")

    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "_build", build_one)
    folder = build.built()
    assert folder == builds[1] and sorted(path.name for path in folder.iterdir()) == sorted(build._MODULES)
    assert [*folder.parent.iterdir()] == [folder]
