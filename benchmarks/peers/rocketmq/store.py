"""RocketMQ's store in a process of its own, as master or slave: src/main/java."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import TracebackType

from benchmarks.limits.build import ROOT
from benchmarks.peers import java
from benchmarks.proc import cpu_ns

_BUILT = ROOT / "build" / "rocketmq"
_ENDS_S = 600
_VERSION = re.compile(r"<rocketmq.version>([^<]+)<")

# RocketMQ unmaps files and reads /proc by means that Java has closed since.
_JAVA = (
    "-Xms256m", "-Xmx1g", "-XX:MaxDirectMemorySize=512m",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("nio", "util", "lang")),
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)  # fmt: skip


def version() -> str:
    (found,) = _VERSION.findall((Path(__file__).parent / "pom.xml").read_text())
    return str(found)


def build() -> None:
    """Have Maven fetch RocketMQ's store, and compile the program that runs it."""
    java.package(Path(__file__).parent)


class Store:
    """A DefaultMessageStore that takes one command at a time. role: "master" or "slave"."""

    def __init__(self, role: str, folder: Path, port: int, file_bytes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        words = (*_JAVA, f"-Duser.home={folder}", "pyreplog.Store", role, str(folder), str(port), str(file_bytes))
        self._log = (folder.parent / f"{folder.name}.log").open("a+b")
        self._process = subprocess.Popen(
            java.command(f"{_BUILT / 'store.jar'}:{_BUILT / 'lib' / '*'}", *words),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@ "):
                return line[2:].strip()
        self._log.seek(0)
        raise ChildProcessError(f"RocketMQ's store has ended: {self._log.read()[-2000:]!r}")

    def call(self, command: str) -> str:
        """Its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        return self._answer()

    def put(self, count: int, size: int) -> int:
        """So many messages with bodies of `size` bytes; the end of the log behind them."""
        return int(self.call(f"put {count} {size}"))

    @property
    def end(self) -> int:
        return int(self.call("max"))

    def cpu_s(self) -> float:
        """Of the process, so far."""
        return cpu_ns(self._process.pid) / 1e9

    def close(self) -> None:
        if self._process.poll() is None:
            self.call("stop")
            self._process.wait(_ENDS_S)
        self._log.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
            self._process.wait()
        self.close()
