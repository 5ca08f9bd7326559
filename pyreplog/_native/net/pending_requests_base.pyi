from collections.abc import Sequence
from typing import Any

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from pyreplog._native.net.send_queue import FrameSendQueue
from pyreplog._native.system.mutex import Mutex

@disjoint_base
class PendingRequestsBase:
    lock: Mutex
    check_us: int
    def __init__(self, lock: Mutex, /) -> None: ...
    @property
    def waiting(self) -> dict[int, Any]: ...
    def number(self) -> int: ...
    def add(self, correlation_id: int, on_reply: Any, deadline_us: int, /) -> bool: ...
    def begin(self, send_queue: FrameSendQueue, size_max: int, /) -> None: ...
    def end(self) -> None: ...
    def ask(self, body: tuple[ReadableBuffer, ...], size: int, on_reply: Any, deadline_us: int, /) -> int: ...

def send_alone(
    adds: Sequence[Any],
    first: int,
    queues: dict[tuple[str, int], Any],
    channels: dict[str, Any],
    most: int,
    deadline_us: int,
    /,
) -> int: ...
