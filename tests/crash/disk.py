"""A disk that forgets what was not synced.

It lies over a real directory. Every file has a *durable image* beside its content of the moment, which is what the page
cache shows, stores through a mapping included; every directory has durable entries and operations that are still in
the journal. `power_cut` writes one of the many states that a cut could leave into another directory and ends the process.

What may be left (PAGE or SECTOR units, drawn anew for every file):
- a file unit is the one of its last sync, of a random earlier moment since (writeback), or the one of now;
- a file's length is the durable one or the one of now;
- of the directory operations since the last sync of that directory, any prefix happened, as with a metadata journal;
  on a disk of another `order` any of them did, or the last one alone;
- the tail page is volatile by contract: gone, zero, garbage, or of another boot;
- SQLite syncs its files, and the directory, by itself, past this disk: they are as they were.

After a sync that failed, units that did not reach the disk count as clean until they are written again, as on Linux.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal, NoReturn

from pyreplog._native.log.disk import Steps
from pyreplog.log import files as files_module
from pyreplog.log import names
from pyreplog.log.files import Files, RealFiles

PAGE, SECTOR = 4096, 512
SQLITE = ".sqlite"  # in the names of its files
CUT = 77
"""Exit status of a process whose power was cut."""


class Image:
    """One inode: what is on disk of it. Its own descriptor keeps the inode, and shows the content of the moment."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._fd).st_ino
        self.durable = bytearray(self.current()) if durable else bytearray()
        self._clean: dict[int, bytes] = {}  # pages not on disk that the kernel takes for clean, after a failed sync

    def __del__(self) -> None:
        os.close(self._fd)

    def current(self) -> bytes:
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    def written(self, offset: int, length: int) -> None:
        """Pages written again are dirty again."""
        for page in range(offset // PAGE, (offset + length - 1) // PAGE + 1):
            self._clean.pop(page, None)

    def sync(self) -> None:
        now = self.current()
        self.durable[len(now) :] = bytes(max(len(now) - len(self.durable), 0))
        if not self._clean:
            self.durable[:] = now
            return
        for page in range(0, len(now), PAGE):
            self._write_page(now, page)

    def fail_sync(self, rng: Random, share: float) -> None:
        """Some dirty pages reach the disk, the others are lost and marked clean."""
        now = self.current()
        self.durable.extend(bytes(max(len(now) - len(self.durable), 0)))
        for page in range(0, len(now), PAGE):
            if now[page : page + PAGE] != self.durable[page : page + PAGE]:
                if rng.random() < share:
                    self._write_page(now, page)
                else:
                    self._clean[page // PAGE] = now[page : page + PAGE]

    def write_back(self, rng: Random) -> None:
        """The kernel writes some pages on its own account."""
        now = self.current()
        if len(self.durable) < len(now):
            return  # a length that was never synced: nothing to hang the pages on
        for page in range(0, len(now), PAGE):
            if rng.random() < 0.3:
                self._write_page(now, page)

    def _write_page(self, now: bytes, at: int) -> None:
        if not self._taken_for_clean(now, at):
            self.durable[at : at + PAGE] = now[at : at + PAGE]

    def _taken_for_clean(self, now: bytes, at: int) -> bool:
        page = at // PAGE
        return self._clean.get(page) == now[page * PAGE : (page + 1) * PAGE]

    def after_cut(self, rng: Random, unit: int, share: float) -> bytes:
        """A content that a power cut may leave: each unit that differs is the new one with probability `share`."""
        now = self.current()
        length = len(now) if rng.random() < share else len(self.durable)
        left = bytearray(self.durable[:length].ljust(length, b"\0"))
        for at in range(0, length, unit):
            new = now[at : at + unit]
            if new != left[at : at + len(new)] and rng.random() < share and not self._taken_for_clean(now, at):
                left[at : at + len(new)] = new
        return bytes(left)


Order = Literal["first", "any", "last"]
"""Which operations on the names of one directory happened that were not synced: the first of them, as many as is drawn;
any of them; the last one alone."""
ORDERS: tuple[Order, ...] = ("first", "last", "any")

Entries = dict[str, "Image | Directory"]


class Directory:
    """Durable entries of one directory, and the operations since: (name, what it names from now on, or None)."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self.inode = path.stat().st_ino
        self.durable: Entries = {}
        self.live: Entries = {}
        self.pending: list[dict[str, Image | Directory | None]] = []
        self.scan(durable=durable)
        if durable:
            self.sync()

    def scan(self, *, durable: bool = False) -> None:
        """Take note of what was made or removed without the disk being asked (temporary files, folders)."""
        is_there = self.path.is_dir() and self.path.stat().st_ino == self.inode
        entries_by_name = {entry.name: entry for entry in os.scandir(self.path)} if is_there else {}
        for name in self.live.keys() - entries_by_name.keys():
            self.note({name: None})
        for name, entry in entries_by_name.items():
            known = self.live.get(name)
            if known is None or known.inode != entry.inode():
                kind = Directory if entry.is_dir() else Image
                self.note({name: kind(Path(entry.path), durable=durable)})

    def move(self, path: Path) -> None:
        """It has another name now."""
        self.path = path
        for name, item in self.live.items():
            if isinstance(item, Directory):
                item.move(path / name)

    def note(self, change: dict[str, Image | Directory | None]) -> None:
        """One operation: it happens wholly or not at all."""
        self.pending.append(change)
        _apply(self.live, change)

    def sync(self) -> None:
        self.scan()
        self.durable = dict(self.live)
        self.pending.clear()

    def after_cut(self, target: Path, rng: Random, draw: Callable[[], tuple[int, float]], *, order: Order) -> None:
        """Write a state that a power cut may leave into `target`."""
        self.scan()
        entries = dict(self.durable)
        _, share = draw()
        if order == "last":
            happened = self.pending[-1:]
        elif order == "any":
            happened = [change for change in self.pending if rng.random() < share]
        else:
            count = round(share * len(self.pending)) if share in (0.0, 1.0) else rng.randint(0, len(self.pending))
            happened = self.pending[:count]
        for change in happened:
            _apply(entries, change)
        entries = {name: item for name, item in entries.items() if SQLITE not in name}
        target.mkdir()
        for name, item in self.live.items():
            if SQLITE in name and isinstance(item, Image):
                (target / name).write_bytes(item.current())
        for name, item in entries.items():
            if isinstance(item, Directory):
                item.after_cut(target / name, rng, draw, order=order)
            else:
                (target / name).write_bytes(item.after_cut(rng, *draw()))

    def walk(self) -> Iterator[Image | Directory]:
        yield self
        for item in (*self.live.values(), *self.durable.values()):
            if isinstance(item, Directory):
                yield from item.walk()
            else:
                yield item


def _apply(entries: Entries, change: dict[str, Image | Directory | None]) -> None:
    for name, item in change.items():
        if item is None:
            entries.pop(name, None)
        else:
            entries[name] = item


class Disk:
    """All below `root`. Every call of the log's disk passes through `call`, one thread at a time; a call has a tick before
    and one after it, and at tick number `cut_at` the power goes: the state left is in `target`."""

    def __init__(self, root: Path, target: Path, rng: Random, *, cut_at: int = 0) -> None:
        self._target, self._rng = target, rng
        self._lock = threading.RLock()
        self._root = Directory(root, durable=True)
        self.ticks, self.cut_at = 0, cut_at
        self.syncs, self.failing_sync = 0, 0
        self.allocations, self.full = 0, range(0)  # numbers of the allocations for which there is no room
        self.write_back_chance = rng.choice((0.0, 0.0, 0.05))
        self.share: float | None = None
        """Chance that something unsynced is on disk; None: drawn for each file."""
        self.order: Order = "first"
        self.killed = False
        """Only the process ends: its machine goes on, with all that the page cache shows."""
        self.at_tick: Callable[[], None] | None = None
        """Looks at the disk at every tick; it must change nothing."""

    def power_cut(self, status: int = CUT) -> NoReturn:
        """Now; the process ends with `status`."""
        with self._lock:
            self.leave(self._target, self._rng)
            os._exit(status)

    def leave(self, target: Path, rng: Random) -> None:
        """Write what a power cut now may leave into `target`; nothing is cut."""
        with self._lock:
            harsh = rng.random() < 0.5
            whole = self.share if self.share is not None else rng.choice((None, None, None, 0.0, 1.0))
            whole = 1.0 if self.killed else whole

            def draw() -> tuple[int, float]:
                share = whole if whole is not None else rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
                return (SECTOR if harsh else PAGE), share

            self._root.after_cut(target, rng, draw, order=self.order)
            if not self.killed:
                for tail in target.rglob(names.TAIL):
                    _spoil(tail, rng)

    @contextmanager
    def call(self) -> Iterator[None]:
        with self._lock:
            self._tick()
            yield
            self._tick()

    def _tick(self) -> None:
        self.ticks += 1
        if self.ticks == self.cut_at:
            self.power_cut()
        if self.at_tick is not None:
            self.at_tick()
        if self._rng.random() < self.write_back_chance:
            images = [item for item in self._root.walk() if isinstance(item, Image)]
            if images:
                self._rng.choice(images).write_back(self._rng)

    # ---- finding what a path or a descriptor is ----------------------------------------------------------------

    def directory(self, path: Path) -> Directory:
        """The directory at a path, looked at anew; the real one when it lies outside of the model."""
        at = self._root
        for part in path.relative_to(at.path).parts:
            at.scan()
            actual = at.live[part]
            if not isinstance(actual, Directory):
                raise NotADirectoryError(path)
            at = actual
        at.scan()
        return at

    def of_descriptor(self, fd: int) -> Image | Directory | None:
        """None: of a file that has no name any more, or of what lies above this disk."""
        inode = os.fstat(fd).st_ino
        if os.fstat(fd).st_nlink == 0 or inode == self._root.path.parent.stat().st_ino:
            return None
        for _ in range(2):
            for item in self._root.walk():
                if item.inode == inode:
                    return item
            for item in list(self._root.walk()):
                if isinstance(item, Directory):
                    item.scan()
        raise LookupError(f"descriptor {fd} is of no file of this disk")

    def sync(self, fd: int) -> None:
        self.syncs += 1
        item = self.of_descriptor(fd)
        if self.syncs == self.failing_sync:
            if isinstance(item, Image):
                item.fail_sync(self._rng, 0.0 if self.share == 0.0 else 0.5)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if item is not None:
            item.sync()

    def allocate(self) -> None:
        self.allocations += 1
        if self.allocations in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _spoil(tail: Path, rng: Random) -> None:
    """Whatever is in the tail page after a power cut is of another boot, if it is there at all."""
    was = tail.read_bytes().ljust(PAGE, b"\0")
    other_boot = was[:16] + rng.randbytes(16) + was[32:]
    left = rng.choice((None, b"", bytes(PAGE), rng.randbytes(PAGE), other_boot))
    if left is None:
        tail.unlink()
    else:
        tail.write_bytes(left)


class DiskCalls:
    """Stands in for the module `os` inside `pyreplog.log.files`, so that the shipped code runs on a Disk. Nothing is really
    synced. What it does not model, it does not have."""

    _PLAIN = frozenset({"close", "O_RDWR", "O_RDONLY", "O_WRONLY", "O_CREAT", "O_EXCL", "O_TRUNC", "O_CLOEXEC",
                        "O_DIRECTORY", "SEEK_SET", "fstat", "preadv"})  # fmt: skip

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        if name not in self._PLAIN:
            raise AttributeError(f"the modelled disk has no os.{name}")
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        with self._disk.call():
            fd = os.open(path, flags, mode)
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                self._disk.directory(Path(path).parent)
            return fd

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        with self._disk.call():
            image = self._disk.of_descriptor(fd)
            done = os.pwrite(fd, data, offset)
            if isinstance(image, Image):
                image.written(offset, done)
            return done

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        with self._disk.call():
            self._disk.allocate()
            os.posix_fallocate(fd, offset, length)

    def fsync(self, fd: int) -> None:
        with self._disk.call():
            self._disk.sync(fd)

    fdatasync = fsync


def run_each(files: Files, steps: Steps) -> None:
    """Call by call, so that none gets past who watches the calls."""
    for name, arguments in steps:
        getattr(files, name)(*arguments)
        steps.done += 1


class PowerCutFiles(RealFiles):
    """The shipped disk layer over a Disk; for one process's life."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._calls = vars(files_module)["os"] = DiskCalls(disk)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        view = memoryview(data)
        while view:
            done = self._calls.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self.write(fd, data, offset)
        self.sync(fd)

    def punch(self, fd: int, start: int, stop: int) -> None:
        with self._disk.call():
            image = self._disk.of_descriptor(fd)
            super().punch(fd, start, stop)
            if isinstance(image, Image):
                image.written(start, stop - start)

    def run(self, steps: Steps) -> None:
        run_each(self, steps)

    def rename(self, old: Path, new: Path) -> None:
        with self._disk.call():
            source, target = self._disk.directory(old.parent), self._disk.directory(new.parent)
            moved = source.live[old.name]
            super().rename(old, new)
            if isinstance(moved, Directory):
                moved.move(new)
            if source is target:
                source.note({old.name: None, new.name: moved})
            else:  # each directory by itself: not even one of the names may be left, or both
                target.note({new.name: moved})
                source.note({old.name: None})

    def link(self, path: Path, new: Path) -> None:
        with self._disk.call():
            linked = self._disk.directory(path.parent).live[path.name]
            target = self._disk.directory(new.parent)
            super().link(path, new)
            target.note({new.name: linked})

    def remove_tree(self, path: Path) -> None:
        """Name by name: a cut may come between any two."""
        for inner in sorted(path.iterdir()) if path.is_dir() else ():
            if inner.is_dir():
                self.remove_tree(inner)
            else:
                self.remove(inner)
        with self._disk.call():
            if path.is_dir():
                self._disk.directory(path.parent)
                path.rmdir()

    def remove(self, path: Path) -> None:
        with self._disk.call():
            directory = self._disk.directory(path.parent)
            super().remove(path)
            if path.name in directory.live:
                directory.note({path.name: None})
