from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

from typing_extensions import disjoint_base

from pyreplog._native.log.future import AppendFuture
from pyreplog._native.system.polling import Epoll

_T = TypeVar("_T")

DRIVER: Final[str]

def look_again() -> None: ...

@disjoint_base
class DriverLockBase:
    holder: dict[str, int]
    waiting: dict[Any, None]
    _borrowed: bool
    _resting: bool
    def __new__(cls) -> Self: ...
    def given_back(self) -> None: ...
    def _wake(self, count: int, /) -> None: ...
    def ring(self) -> None: ...

@disjoint_base
class ReactorBase:
    _callbacks: dict[int, Callable[[int], object]]
    _timers: Any
    clock: Any
    _epoll: Epoll
    _driver_lock: Any
    _wakeup: Any
    _busy_poll_us: int
    _bell_fd: int
    _asleep: bool
    def __new__(cls) -> ReactorBase: ...
    @property
    def _soon(self) -> list[Callable[[], object]]: ...
    def drive(self, done: Callable[[], bool], timeout: float | None = None) -> bool: ...
    def wait(self, future: AppendFuture[_T], timeout: float | None = None) -> _T: ...
    def in_driver(self) -> bool: ...
    def _look_up(self, _: AppendFuture[Any], /) -> None: ...
    def _call_those_handed_over(self) -> None: ...

def drive_until_wanted(
    ref: Callable[[], Any], driver_lock: DriverLockBase, epoll: Any, longest_s: float, /
) -> None: ...
