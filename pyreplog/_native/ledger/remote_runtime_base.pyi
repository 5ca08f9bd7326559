from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from typing_extensions import disjoint_base

from pyreplog._native.log.future import AppendFuture

_T = TypeVar("_T")

@disjoint_base
class RemoteRuntimeBase:
    _adds: dict[tuple[str, int], Any]
    _ready: dict[str, Any]
    _unanswered_max: int
    _request_timeout_us: int
    _now_us: Callable[[], int]
    reactor: Any
    def add(self, adds: Sequence[Any], /) -> None: ...
    def wait(self, future: AppendFuture[_T], timeout: float | None = None) -> _T: ...
    def send(self, bookie: str, request: Any, on_reply: Callable[[Any], None], /) -> None: ...
