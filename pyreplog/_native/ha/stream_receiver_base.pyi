from collections.abc import Callable
from threading import RLock
from typing import Any

from typing_extensions import disjoint_base

from pyreplog._native.ha.reports import ReplicaReportsBase
from pyreplog._native.net.frame import FrameBatch

LITTLE_BYTES: int

@disjoint_base
class ProgressReporter:
    floor_due_at: int
    def __init__(self, machine: ReplicaReportsBase, lock: RLock, /) -> None: ...
    @property
    def machine(self) -> ReplicaReportsBase: ...

@disjoint_base
class StreamReceiverBase:
    received_bytes: int
    _reporter: ProgressReporter | None
    _log: Any
    _syncer: Any
    _on_landed: Callable[[], object] | None
    _reported_bytes: int
    def fast_path(self, connection: Any, batch: FrameBatch, /) -> bytes | None: ...
    def report(self) -> None: ...
