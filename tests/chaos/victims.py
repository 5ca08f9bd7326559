"""Processes that are killed, stopped, resumed, started again, and whose clocks jump."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.waiting import stand_still

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
"""Debian's libfaketime; None: it is not installed, and no clock jumps."""
START_S = 60.0


class Victim:
    """A process that is started again with the same command. It prints a line of JSON when it serves.

    on_line: takes each further line, on a thread of its own. has_clock: its clock can be set, with libfaketime.
    """

    def __init__(
        self, name: str, folder: Path, command: Sequence[str], on_line: Any = None, *, has_clock: bool = True
    ) -> None:
        self.name, self.command = name, [sys.executable, "-m", *command]
        self._has_clock = has_clock and FAKETIME is not None
        self._errors = folder / f"{name}.err"
        self._clock = folder / f"{name}.clock"
        self._on_line = on_line
        self._popen: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self.output: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._popen is not None
        return self._popen.pid

    @property
    def errors(self) -> str:
        """The end of what it wrote to its standard error."""
        return self._errors.read_text()[-2000:]

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.spawn()
        self.serve()

    def spawn(self) -> None:
        """Start it; `serve` waits until it serves."""
        environment = dict(os.environ)
        if self._has_clock:
            self._clock.write_text("+0")
            environment |= {
                "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._clock), "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }  # fmt: skip
        with self._errors.open("ab") as errors:
            self._popen = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )

    def serve(self) -> None:
        """Wait until it serves."""
        assert self._popen is not None and self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} did not start: {self.errors}")
        self.output = json.loads(line)
        self._listener = threading.Thread(target=self._listen, args=(self._popen.stdout,))
        self._listener.start()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            if self._on_line is not None and line.endswith("\n"):
                self._on_line(self.name, json.loads(line))

    def send_line(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._popen is not None and self._popen.stdin is not None
        self._popen.stdin.write(f"{line}\n")
        self._popen.stdin.flush()

    def kill(self) -> None:
        """kill -9, and wait until it is gone and its last lines were heard. RuntimeError: it had ended otherwise."""
        assert self._popen is not None
        self._popen.kill()
        code = self.wait()
        if code != -signal.SIGKILL:
            raise RuntimeError(f"{self.name} ended with {code} before it was killed: {self.errors}")

    def wait(self) -> int:
        """Wait until it is gone and its last lines were heard; return its exit code."""
        assert self._popen is not None and self._popen.stdin is not None and self._popen.stdout is not None
        code = self._popen.wait()
        if self._listener is not None:  # it served
            self._listener.join()
        self._popen.stdin.close()
        self._popen.stdout.close()
        return code

    def stop(self) -> None:
        assert self._popen is not None
        stand_still(self._popen)

    def resume(self) -> None:
        assert self._popen is not None
        self._popen.send_signal(signal.SIGCONT)

    def set_clock(self, seconds: int) -> None:
        """Move its wall clock to so many seconds before or after the machine's. RuntimeError: it has the machine's."""
        if "libfaketime" not in Path(f"/proc/{self.pid}/maps").read_text():
            raise RuntimeError(f"{self.name} runs without libfaketime")
        replacement = self._clock.with_suffix(".new")
        replacement.write_text(f"{seconds:+d}")
        replacement.replace(self._clock)

    def check_alive(self) -> None:
        """Raise RuntimeError if it has ended by itself."""
        assert self._popen is not None
        if self._popen.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self._popen.returncode}: {self.errors}")

    def end(self) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self.resume()
            self.kill()
