from collections.abc import Iterable
from typing import Any, final

from typing_extensions import disjoint_base

from pyreplog._native.log.log_position import LogPosition

@final
class HighWatermark:
    def __init__(self, value: LogPosition, epoch_start: LogPosition) -> None: ...
    @property
    def value(self) -> LogPosition: ...
    @property
    def epoch_start(self) -> LogPosition: ...
    def advance(self, marks: Iterable[LogPosition | None]) -> bool: ...
    @property
    def is_known(self) -> bool: ...

@disjoint_base
class LeadingReplicaBase:
    isr: Any
    config: Any
    epoch: Any
    start: Any
    end: Any
    synced: Any
    log_start: int
    is_deposed: bool
    _followers: Any
    _high_watermark: HighWatermark
    @property
    def high_watermark(self) -> LogPosition: ...
    def appended(self, end: LogPosition, synced: LogPosition, now_us: int) -> list[Any]: ...
    def _advance(self, now_us: int) -> list[Any]: ...
