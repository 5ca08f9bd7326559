from collections.abc import Callable
from typing import Any

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from pyreplog._native.ledger.staging import Staging
from pyreplog._native.log.future import AppendFuture
from pyreplog.times import Time

@disjoint_base
class LedgerBase:
    _writer: Any
    _staging: Staging
    _driver: Any
    _runtime: Any
    _clock: Any
    _window_bytes: int
    _window_entries: int
    _waiting_for_room: list[AppendFuture[None]]
    _is_lac_due: bool
    on_progress: Callable[[], object] | None
    def __new__(cls, *args: Any, **kwargs: Any) -> Any: ...
    def append(
        self, value: ReadableBuffer, key: ReadableBuffer | None = None, *, event_time: Time | None = None
    ) -> int: ...
    def _append_alone(
        self, value: ReadableBuffer, key: ReadableBuffer | None, event_time: Time | None, /
    ) -> tuple[AppendFuture[range] | None, list[Any]]: ...
    def _progressed(self) -> None: ...
    def _refuse_loop(self) -> None: ...
    def _give_room(self) -> None: ...
    def _send_lac_later(self) -> None: ...
