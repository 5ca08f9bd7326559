"""Processes of the demo that tell what they do: a JSON object per line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from verification import Mismatch

PATIENCE_S = 120.0


class Child:
    """One of them. said: the newest of each thing it told."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.said: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.said |= json.loads(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, what: str, least: int = 0) -> Any:
        """Waits until it has told this, and at least so much of it. Mismatch when it ends before, or never does."""

        def is_reached() -> bool:
            return what in self.said and (not least or self.said[what] >= least)

        with self._changed:
            self._changed.wait_for(lambda: is_reached() or self._ended, PATIENCE_S)
            if not is_reached():
                raise Mismatch(f"a process told {self.said}, and not {what} {least or ''}")
            return self.said[what]

    def go_on(self) -> None:
        """One that waits half way for what others do in the middle goes on."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """kill -9"""
        self.process.kill()
        self.process.wait()
        self._thread.join()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
