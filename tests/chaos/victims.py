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

    on_line: takes each further line, on a thread of its own.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str], on_line: Any = None) -> None:
        self.name, self.command = name, [sys.executable, "-m", *command]
        self._errors = folder / f"{name}.err"
        self._clock = folder / f"{name}.clock"
        self._on_line = on_line
        self._popen: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self.said: dict[str, Any] = {}

    def start(self) -> None:
        """Start it, and wait until it serves."""
        environment = dict(os.environ)
        if FAKETIME is not None:
            self._clock.write_text("+0")
            environment |= {
                "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._clock), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }  # fmt: skip
        with self._errors.open("ab") as errors:
            self._popen = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} did not start: {self._errors.read_text()[-2000:]}")
        self.said = json.loads(line)
        self._listener = threading.Thread(target=self._listen, args=(self._popen.stdout,))
        self._listener.start()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            if self._on_line is not None and line.endswith("\n"):
                self._on_line(self.name, json.loads(line))

    def kill(self) -> None:
        """kill -9, and wait until it is gone and its last lines were heard."""
        assert self._popen is not None and self._listener is not None and self._popen.stdout is not None
        self._popen.kill()
        self._popen.wait()
        self._listener.join()
        self._popen.stdout.close()

    def stop(self) -> None:
        assert self._popen is not None
        stand_still(self._popen)

    def resume(self) -> None:
        assert self._popen is not None
        self._popen.send_signal(signal.SIGCONT)

    def set_clock(self, seconds: int) -> None:
        """Move its wall clock to so many seconds before or after the machine's."""
        replacement = self._clock.with_suffix(".new")
        replacement.write_text(f"{seconds:+d}")
        replacement.replace(self._clock)

    def check_alive(self) -> None:
        """Raise RuntimeError if it has ended by itself."""
        assert self._popen is not None
        if self._popen.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self._popen.returncode}: {self._errors.read_text()[-2000:]}")

    def end(self) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self.resume()
            self.kill()
