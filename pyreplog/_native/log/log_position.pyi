from typing import NamedTuple

class LogPosition(NamedTuple):
    position: int
    entry: int
