"""`pyreplog ha` as processes, as tests need them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyreplog.ha.remote_node import RemoteNode
from pyreplog.log import names
from tests.cli.support import COMMAND, SEGMENT_BYTES
from tests.ha.nodes import until

LIMIT_S = 30.0


class NodeProcess:
    """`pyreplog ha ACTION PATH`; its first line says where it is."""

    def __init__(self, action: str, path: Path, *options: object) -> None:
        self.name, self.path = path.name, path
        self.popen = subprocess.Popen(
            [*COMMAND, "ha", "--json", action, str(path), *map(str, options)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self.popen.communicate(timeout=LIMIT_S)[1]
        self.output: dict[str, Any] = json.loads(line)

    @property
    def address(self) -> str:
        return str(self.output["address"])

    def peer(self) -> tuple[str, str]:
        """As an option of others."""
        return "--peer", f"{self.name}={self.address}"

    def end(self, number: int) -> tuple[int, str]:
        """Exit code and what it complained of."""
        self.popen.send_signal(number)
        _, error_text = self.popen.communicate(timeout=LIMIT_S)
        return self.popen.returncode, error_text


class Processes:
    """Nodes of one group in folders of one directory; none outlives the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack

    def start(self, role: str, name: str, *options: object) -> NodeProcess:
        return self.run(role, name, "--segment-bytes", SEGMENT_BYTES, *options)

    def run(self, action: str, name: str, *options: object) -> NodeProcess:
        process = NodeProcess(action, self.folder / name, *options)
        self._stack.callback(_end, process)
        return process

    def until(self, process: NodeProcess, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until something holds of a node's status, which is returned."""
        values: dict[str, Any] = {}
        with RemoteNode(process.address) as node:

            def does_hold() -> object:
                values.update(node.status())
                return holds(values)

            until(does_hold)
        return values


def _end(process: NodeProcess) -> None:
    if process.popen.poll() is None:
        process.end(signal.SIGKILL)
    for stream in (process.popen.stdout, process.popen.stderr):
        assert stream is not None
        stream.close()


def segments(path: Path) -> dict[str, bytes]:
    """Segment files of a log that nobody has open, by name."""
    return {file.name: file.read_bytes() for file in (names.segment_path(path, b) for b in names.segment_bases(path))}
