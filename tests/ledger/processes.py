"""Bookies and writers in processes of their own, which a test kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.waiting import stand_still

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 180.0
SEGMENT_BYTES = 4 << 20


class Process:
    """A process that prints JSON objects."""

    def __init__(self, *command: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", *command], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.output: dict[str, Any] = {}
        self._came = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._came:
                self.output.update(json.loads(line))
                self._came.notify_all()
        with self._came:
            self._ended = True
            self._came.notify_all()

    def wait_for(self, name: str, least: int | None = None) -> Any:
        """Wait until the process has printed this field, with at least this value; return the value."""

        def has_value() -> bool:
            return name in self.output and (least is None or self.output[name] >= least)

        with self._came:
            assert self._came.wait_for(lambda: has_value() or self._ended, PATIENCE_S), (
                f"{self.output}, not {name} {least}"
            )
        assert has_value(), f"it ended after {self.output}: {self.error_text()}"
        return self.output[name]

    def error_text(self) -> str:
        assert self.popen.stderr is not None
        return self.popen.stderr.read()

    def error_lines(self, last: str) -> list[str]:
        """Wait for a line of standard error that contains a text; return the lines up to it."""
        assert self.popen.stderr is not None
        lines = list[str]()
        while not lines or last not in lines[-1]:
            lines.append(self.popen.stderr.readline())
            assert lines[-1], f"it ended after {lines}, without {last!r}"
        return lines

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. After SIGSTOP, wait until the process has stopped."""
        if number == signal.SIGSTOP:
            stand_still(self.popen)
        else:
            self.popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process with kill -9, and wait until it has ended."""
        self.popen.kill()
        self.wait()

    def wait(self) -> int:
        code = self.popen.wait(PATIENCE_S)
        self._thread.join()
        return code

    def send_line(self) -> None:
        """Write a line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    @property
    def private_bytes(self) -> int:
        """Return its private memory, without mapped files."""
        for line in Path(f"/proc/{self.popen.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no RssAnon")

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.kill()
        self._thread.join()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            assert stream is not None
            stream.close()


class ProcessGroup:
    """All processes of a test, which are killed at its end."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.processes: list[Process] = []
        self.bookies: dict[str, Process] = {}  # by the id of the bookie

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.close()

    def start(self, *command: str) -> Process:
        self.processes.append(process := Process(*command))
        return process

    def start_bookies(self, *names: str) -> None:
        started = [self.bookie(name) for name in names]
        for process in started:
            self.bookies[process.wait_for("bookie")] = process

    def bookie(self, name: str) -> Process:
        return self.start(
            "pyreplog", "bookie", str(self.folder / name), "--json", "--metadata", self.url,
            "--segment-bytes", str(SEGMENT_BYTES),
        )  # fmt: skip

    def writer(self, *quorums: int) -> Process:
        return self.start("tests.ledger.writing", self.url, *map(str, quorums))
