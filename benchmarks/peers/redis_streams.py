"""A Redis stream over a unix socket; the server writes its append-only file before it answers, unless a sync of it is
under way, and syncs it every second, or always where every entry must be on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

from benchmarks.peers.peer import Peer

_STREAM = "log"
_START_S = 60.0
_PAGE = 1000


class RedisStream(Peer):
    title = "Redis stream"
    keeps_all = False  # a server whose last sync is still under way answers, and writes up to two seconds later

    def __init__(self, directory: Path, *, synced: bool) -> None:
        (directory / "socket").unlink(missing_ok=True)
        settings = {
            "port": "0", "unixsocket": "socket", "dir": str(directory), "save": "", "appendonly": "yes",
            "appendfsync": "always" if synced else "everysec", "auto-aof-rewrite-percentage": "0",
        }  # fmt: skip
        command = [_server(), *(word for name, value in settings.items() for word in (f"--{name}", value))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._directory = os.open(directory, os.O_PATH)  # a socket's path has 107 bytes; the directory's may have more
        self._client: Any = redis.Redis(unix_socket_path=f"/proc/self/fd/{self._directory}/socket")
        try:
            self._await_start()
        except BaseException:
            self.close()
            raise

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self._client.ping()
                return
            except redis.ConnectionError:  # not listening yet, or still loading its file
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.002)

    @staticmethod
    def version() -> str:
        told = subprocess.run([_server(), "--version"], capture_output=True, text=True, check=True).stdout
        return f"Redis {told.split('v=')[1].split()[0]}, redis {version('redis')}, hiredis {version('hiredis')}"

    def append(self, value: bytes) -> bytes:
        key: bytes = self._client.xadd(_STREAM, {b"v": value})
        return key

    def append_batch(self, values: list[bytes]) -> list[bytes]:
        pipeline = self._client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(_STREAM, {b"v": value})
        keys: list[bytes] = pipeline.execute()
        return keys

    def scan(self) -> tuple[int, int]:
        count = total = 0
        for page in self._pages():
            for _, fields in page:
                total += len(fields[b"v"])
            count += len(page)
        return count, total

    def _pages(self) -> Iterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        start = b"-"
        while page := self._client.xrange(_STREAM, min=start, count=_PAGE):
            yield page
            start = b"(" + page[-1][0]

    def values(self) -> Iterator[bytes]:
        for page in self._pages():
            yield from (fields[b"v"] for _, fields in page)

    def reader(self) -> Callable[[bytes], bytes]:
        return self._read

    def _read(self, key: bytes) -> bytes:
        value: bytes = self._client.xrange(_STREAM, key, key)[0][1][b"v"]
        return value

    def servers(self) -> list[int]:
        return [self._process.pid]

    def close(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait()
        os.close(self._directory)


def _server() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("redis-server: install Redis (apt-get install redis-server) to compare with it")
    return found
