from collections.abc import Callable
from typing import Protocol, final

class _Scheduler(Protocol):
    def wait_while(self, is_so: Callable[[], bool], timeout_us: int = -1, /) -> bool: ...
    def park(self, word: int, timeout_us: int, /) -> bool: ...
    def unpark(self, word: int, count: int, /) -> None: ...
    def pause(self) -> bool: ...

@final
class Seam:
    scheduler: _Scheduler | None

seam: Seam
