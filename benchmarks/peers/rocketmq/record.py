"""Record what RocketMQ's master and slave say to each other: `python -m benchmarks.peers.rocketmq.record FOLDER`.

The transcripts in tests/ha/rocketmq/transcripts that say so were made by this; README.md there tells what lines mean.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.peers.replicated.peer import free_ports
from benchmarks.peers.rocketmq import store
from benchmarks.peers.rocketmq.store import Store

FILE_BYTES = 4096
_BODY = 60
_IDLE_S = 11.0
_SETTLE_S = 0.2


class Recorder:
    """A proxy to a master that writes down what passes. One connection at a time."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lines: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            slave, _ = self._listener.accept()
            begin = time.monotonic()
            master = socket.create_connection(("127.0.0.1", self._master))
            threads = [
                threading.Thread(target=self._pass_on, args=(*way, begin), daemon=True)
                for way in (("S", slave, master), ("M", master, slave))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _pass_on(self, side: str, source: socket.socket, target: socket.socket, begin: float) -> None:
        while data := source.recv(1 << 16):
            self.lines.append(f"{time.monotonic() - begin:.3f} {side} {data.hex()}")
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def _until(slave: Store, end: int) -> None:
    deadline = time.monotonic() + 60
    while slave.end < end:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the slave is at {slave.end}, the master at {end}")
        time.sleep(0.02)


def main() -> None:
    """Parse the command line, run the two stores, write the transcripts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.rocketmq.record", description=__doc__)
    parser.add_argument("folder", type=Path)
    target: Path = parser.parse_args().folder
    store.build()
    ports = free_ports(3)
    with tempfile.TemporaryDirectory() as name, Store("master", Path(name) / "master", ports[0], FILE_BYTES) as master:
        recorder = Recorder(ports[0])

        def write(title: str, end: int, has: int, what: str) -> None:
            time.sleep(_SETTLE_S)
            head = [f"# Recorded between master and slave of rocketmq-store {store.version()}.", f"# {what}"]
            lines = [*head, f"file {FILE_BYTES}", f"end {end}", f"has {has}", *recorder.take()]
            (target / f"{title}.txt").write_text("\n".join(lines) + "\n")

        with Store("slave", Path(name) / "empty", ports[1], FILE_BYTES) as slave:
            slave.call(f"follow 127.0.0.1:{recorder.port}")
            time.sleep(_IDLE_S)
            _until(slave, master.put(2, _BODY))
        write(
            "empty-master",
            0,
            0,
            "Neither side has anything: a late report of 0, heartbeats, then the first bytes.",
        )
        end = master.put(25, _BODY)
        with Store("slave", Path(name) / "slave", ports[1], FILE_BYTES) as slave:
            slave.call(f"follow 127.0.0.1:{recorder.port}")
            _until(slave, master.end)
            for _ in range(3):
                _until(slave, master.put(1, _BODY))
            time.sleep(_IDLE_S)
            _until(slave, master.put(20, _BODY))
        write(
            "session",
            end,
            0,
            "A report of 0, the last file, live records, heartbeats, the end of a file.",
        )
        with Store("slave", Path(name) / "slave", ports[2], FILE_BYTES) as slave:
            has, end = master.end, master.put(2, _BODY)
            slave.call(f"follow 127.0.0.1:{recorder.port}")
            _until(slave, master.end)
        write("restarted-slave", end, has, "A slave that has something asks for what it lacks.")


if __name__ == "__main__":
    main()
