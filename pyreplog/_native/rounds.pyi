from collections import deque
from collections.abc import Callable
from typing import Any

from typing_extensions import disjoint_base

from pyreplog._native.polling import Epoll

@disjoint_base
class Rounds:
    _callbacks: dict[int, Callable[[int], object]]
    _soon: deque[Callable[[], object]]
    _timers: Any
    clock: Any
    _epoll: Epoll
    _bell: Any
    _busy_poll_us: int
    _bell_fd: int
    _asleep: bool
    def __new__(cls) -> Rounds: ...
    def _step(self, timeout_s: float, /) -> None: ...
    def _before(self, timeout_s: float, /) -> float: ...
    def _after(self, events: list[tuple[int, int]], /) -> None: ...
    def _call_those_handed_over(self) -> None: ...
