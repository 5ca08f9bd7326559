from typing import NamedTuple

class Mark(NamedTuple):
    position: int
    entry: int
