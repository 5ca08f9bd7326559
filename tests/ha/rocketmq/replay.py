"""Recorded sessions (transcripts/README.md), replayed with the state machines of this package in place of one end."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyreplog._native.net.frame import FrameParser, encode
from pyreplog.errors import DisconnectedError
from pyreplog.rocketmq.effects import AppendToLog, Close, Connect, Effect, ReportToMaster, SendFrame, SlaveAcked
from pyreplog.rocketmq.slave_feed_machine import SlaveFeedMachine
from pyreplog.rocketmq.slave_machine import SlaveMachine, SlaveState

FOLDER = Path(__file__).parent / "transcripts"
TICK_US = 10_000


class Line(NamedTuple):
    us: int
    side: str
    data: bytes | None  # None: this side closes the connection


class Transcript:
    """One recorded session."""

    def __init__(self, path: Path) -> None:
        self.settings: dict[str, str] = {}
        self.lines: list[Line] = []
        for words in (line.split() for line in path.read_text().splitlines() if not line.startswith("#")):
            if len(words) == 2:
                self.settings[words[0]] = words[1]
            else:
                data = None if words[2] == "closes" else bytes.fromhex(words[2])
                self.lines.append(Line(int(float(words[0]) * 1e6), words[1], data))

    @property
    def sides(self) -> str:
        return self.settings.get("plays", "SM")

    def number(self, name: str) -> int:
        return int(self.settings.get(name, 0))

    def sent(self, side: str) -> list[bytes | None]:
        """Return the bytes that a side sent on each connection, with None where it closed the connection itself."""
        contents: list[bytes | None] = [b""]
        for line in self.lines:
            if line.data is None:
                contents += [None, b""] if line.side == side else [b""]
            elif line.side == side:
                contents[-1] = (contents[-1] or b"") + line.data
        return contents


class MasterReplay:
    """Replays the bytes of the recorded slave to the master's machine, whose log grows as that of the recorded master
    did."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._now = 0
        self._end = transcript.number("end")
        self.feeding = SlaveFeedMachine(0, transcript.number("file"))
        self.sent: list[bytes | None] = [b""]
        self.progress: list[int] = []

    def run(self) -> None:
        sent = b"".join(line.data or b"" for line in self._transcript.lines if line.side == "M")
        self._bodies = {offset: bytes(body) for offset, body in FrameParser().feed(sent) if len(body)}
        parser = FrameParser()
        for line in self._transcript.lines:
            self._wait(line.us)
            if line.side == "S" and line.data is not None:
                self._do(self.feeding.received(line.data, self._now, 0, self._end))
                self._pump()
            elif line.data is not None:
                for offset, body in parser.feed(line.data):
                    self._end = max(self._end, offset + len(body))
                    self._pump()

    def _pump(self) -> None:
        while (effect := self.feeding.more(self._now, 0, self._end)) is not None:
            self._do([effect])

    def _wait(self, until: int) -> None:
        while self._now < until:
            self._now = min(self._now + TICK_US, until)
            self._do(self.feeding.tick(self._now, idle=True))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame(offset, size):
                    body = self._bodies[offset] if size else b""
                    assert len(body) == size, f"a frame of {size} bytes at {offset}, RocketMQ's has {len(body)}"
                    self.sent[-1] = (self.sent[-1] or b"") + encode(offset, body)
                case SlaveAcked(offset):
                    self.progress.append(offset)
                case Close():
                    self.sent += [None, b""]


class SlaveReplay:
    """Replays the bytes of the recorded master to the slave's machine, whose log is a bytearray without any checks."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._now = 0
        self.landed: dict[int, int] = {}
        self.pulling = SlaveMachine(0, transcript.number("has"), transcript.number("file"), random=lambda: 1.0)
        self.sent: list[bytes | None] = [b""]

    def run(self) -> None:
        self._wait(TICK_US)
        for line in self._transcript.lines:
            self._wait(line.us)
            if line.side != "M":
                continue
            if line.data is None:
                self.sent.append(b"")
                self.pulling.lost(self._now, DisconnectedError("the master closed the connection"))
            else:
                self.receive(line.data)

    def receive(self, data: bytes) -> None:
        while data and self.pulling.state is SlaveState.STREAMING:
            window = self.pulling.buffer()
            count = min(len(window), len(data))
            window[:count] = data[:count]
            data = data[count:]
            self._do(self.pulling.received(count, self._now))

    def _wait(self, until: int) -> None:
        while self._now < until:
            self._now = min(self._now + TICK_US, until)
            self._do(self.pulling.tick(self._now))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Connect():
                    self._do(self.pulling.connected(self._now))
                case AppendToLog(offset, body):
                    self.landed.update((offset + i, byte) for i, byte in enumerate(bytes(body)))
                case ReportToMaster(offset):
                    self.sent[-1] = (self.sent[-1] or b"") + offset.to_bytes(8, "big", signed=True)
                case Close():
                    self.sent += [None, b""]
