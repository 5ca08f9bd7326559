from _thread import LockType

from typing_extensions import disjoint_base

from pyreplog._native.log.log_view_base import LogViewBase
from pyreplog._native.log.segment import Pin, Segment
from pyreplog._native.net.send_queue import FrameSendQueue

@disjoint_base
class FrameFeedBase:
    position: int
    turn: LockType
    @property
    def behind(self) -> int: ...
    @property
    def left_bytes(self) -> int: ...
    _held: tuple[Pin, Segment] | None
    _stop: int
    _truncations: int
    def __init__(self, log: LogViewBase, transfer_bytes: int, /) -> None: ...
    def begin(self, send_queue: FrameSendQueue, size_max: int, /) -> None: ...
    def end(self) -> None: ...
    def leave(self) -> bool: ...
