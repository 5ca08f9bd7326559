from typing import NamedTuple

class LogPosition(NamedTuple):
    position: int
    entry: int

class AppendedOffsets(NamedTuple):
    offsets: range
    end: LogPosition
