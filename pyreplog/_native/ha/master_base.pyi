from collections.abc import Callable, Mapping
from typing import Any

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

from pyreplog._native.ha.parking import ParkingLot
from pyreplog._native.net.frame import FrameBatch
from pyreplog._native.net.frame_feed_base import FrameFeedBase
from pyreplog.times import Time

@disjoint_base
class ReplicaStreamBase:
    reported: int
    synced: int
    master: MasterBase | None
    def __init__(self, feed: FrameFeedBase, ahead_bytes: int, segment_bytes: int, /) -> None: ...
    @property
    def feed(self) -> Any: ...
    @property
    def is_due(self) -> bool: ...
    def fast_path(self, connection: Any, batch: FrameBatch, /) -> bytes | None: ...

@disjoint_base
class PendingCommitsBase:
    watches: Any
    def __init__(self, reached: int, /) -> None: ...
    @property
    def lot(self) -> ParkingLot: ...
    def advance(self, position: int, /) -> None: ...
    def _advance_futures(self, position: int, /) -> None: ...

@disjoint_base
class MasterBase:
    log: Any
    group: Any
    _pending_commits: Any
    _followers: Any
    _lock: Any
    _now_us: Callable[[], int]
    _polls: Any
    _drive: Callable[..., bool]
    _in_driver: Callable[[], bool]
    _closed_error: BaseException | None
    _offered: int
    is_guarded: bool
    _is_synced: bool
    _is_received_enough: bool
    _is_commit_due: bool
    _closed: bool
    def append(
        self,
        value: ReadableBuffer,
        key: ReadableBuffer | None,
        event_time: Time | None,
        properties: Mapping[str, str | bytes] | None,
        /,
    ) -> int: ...
    def offer(self) -> None: ...
    def _reported(self, follower: ReplicaStreamBase, /) -> None: ...
    def _committed(self, mark: tuple[int, int], /) -> None: ...
    def _send_commit_soon(self) -> None: ...
    def _pump(self, followers: Any, waits: bool, /) -> None: ...
    def _admit(self) -> None: ...
    def _await_admission(self) -> None: ...
    def _refuse_to_wait(self) -> None: ...
