"""Console blocks of the documentation: commands are run as they are printed, in a folder and at ports of the test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.guides import placed

ROOT = Path(__file__).parents[1]
PATIENCE_S = 120.0
NUMBER = re.compile(r"\b[0-9a-f]{32}\b|\d[\d.,]*( [KMG]iB/s)?")


class Step(NamedTuple):
    """One command of a console block.

    Attributes:
        terminal: the text in front of `$`: the name of the terminal in which a server runs, or "" for a command that ends.
        command: the command.
        printed: the output below it, as the document shows it.
    """

    terminal: str
    command: str
    printed: str


def steps(block: str) -> list[Step]:
    """Return the commands of a console block."""
    return [Step(*found) for found in re.findall(r"^(\w*)\$ (.*)\n((?:(?!\w*\$ ).*\n)*)", block, re.MULTILINE)]


def shape(text: str) -> str:
    """Return output without its numbers and ids."""
    return NUMBER.sub("0", text)


class Console:
    """Terminals in a folder. The servers that they run are killed at the end.

    places: texts of the document, as addresses, and what stands for them here.
    """

    def __init__(self, folder: Path, places: Mapping[str, str] | None = None) -> None:
        self._folder, self._places = folder, dict(places or {})
        programs = folder / ".programs"
        programs.mkdir()
        program = programs / "pyreplog"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m pyreplog "$@"\n')
        program.chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        self._servers: dict[str, subprocess.Popen[str]] = {}

    def placed(self, text: str) -> str:
        """Return a text of the document with the places of this test."""
        return placed(text, self._places)

    def run(self, command: str, *codes: int) -> str:
        """Run a command that ends; return what it prints on standard output. codes: accepted exit codes, if not 0 alone."""
        done = subprocess.run(
            ["bash", "-ec", self.placed(command)], cwd=self._folder, env=self._environment, capture_output=True,
            text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode in (codes or (0,)), f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *servers: Step) -> list[str]:
        """Start servers, all at the same time; return the first line that each prints."""
        for terminal, command, _ in servers:
            self._servers[terminal] = subprocess.Popen(
                ["bash", "-c", f"exec {self.placed(command)}"], cwd=self._folder, env=self._environment,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        return [self._first_line(step) for step in servers]

    def _first_line(self, step: Step) -> str:
        server = self._servers[step.terminal]
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, f"{step.command}: ended with {server.communicate()}"
        return line

    def stop(self, terminal: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to a server, and wait until it has ended."""
        self._servers[terminal].send_signal(number)
        self._wait(terminal, number)

    def stop_all(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to all servers, and wait until they have ended."""
        for server in self._servers.values():
            server.send_signal(number)
        for terminal in [*self._servers]:
            self._wait(terminal, number)

    def _wait(self, terminal: str, number: signal.Signals) -> None:
        server = self._servers.pop(terminal)
        _, errors = server.communicate(timeout=PATIENCE_S)
        assert number == signal.SIGKILL or server.returncode == 0, (terminal, server.returncode, errors)

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.kill()
            server.communicate()
