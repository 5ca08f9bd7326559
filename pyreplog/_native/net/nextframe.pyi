from _thread import LockType

from typing_extensions import disjoint_base

from pyreplog._native.log.reader import Reader
from pyreplog._native.log.segment import Pin, Segment
from pyreplog._native.net.outbox import FrameOutbox

@disjoint_base
class NextFrame:
    position: int
    turn: LockType
    @property
    def left_bytes(self) -> int: ...
    _held: tuple[Pin, Segment] | None
    _stop: int
    _truncations: int
    def __init__(self, log: Reader, transfer_bytes: int, /) -> None: ...
    def begin(self, outbox: FrameOutbox, size_max: int, /) -> None: ...
    def end(self) -> None: ...
    def leave(self) -> bool: ...
