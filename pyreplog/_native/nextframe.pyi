from _thread import LockType

from typing_extensions import disjoint_base

from pyreplog._native.outbox import FrameOutbox
from pyreplog._native.reader import Reader
from pyreplog._native.segment import Pin, Segment

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
