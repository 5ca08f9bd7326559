from typing import Any

from typing_extensions import disjoint_base

RATE_US: int

@disjoint_base
class ProgressBase:
    received: Any
    synced: Any
    proven: Any
    counted: Any
    reported: bool
    knows_members: bool
    counts: bool
    observer: bool
    caught_up_us: int
    _probe: int
    _probe_us: int
    _base: int
    _base_us: int
    _rate: int
    def rate(self, now_us: int, /) -> int: ...
    def stored_members(self, mark: tuple[int, int], /) -> None: ...

@disjoint_base
class CommitPointBase:
    members: Any
    fenced: Any
    committed: Any
    _end: Any
    _synced: Any
    _reports: int
    def __init__(
        self,
        name: str,
        members: Any,
        config: Any,
        fallback: Any,
        end: tuple[int, int],
        synced: tuple[int, int],
        committed: tuple[int, int],
        term_start: tuple[int, int],
        origin: tuple[int, int],
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Any: ...
    @property
    def fallback(self) -> Any: ...
    @property
    def own(self) -> Any: ...
    @property
    def replicated(self) -> Any: ...
    @property
    def _term_start(self) -> Any: ...
    @property
    def _progress_by_name(self) -> dict[str, Any]: ...
    @property
    def _connected(self) -> dict[Any, Any]: ...
    def grew(self, end: tuple[int, int], synced: tuple[int, int], /) -> None: ...
    def progress(
        self, connection: Any, progress: tuple[tuple[int, int], tuple[int, int]], sent: int, now_us: int, /
    ) -> list[Any]: ...
    def _absurd(self, connection: Any, absurdity: str, now_us: int, /) -> list[Any]: ...
    def _advance(self, now_us: int, /) -> list[Any]: ...
    def _commit_up_to(self, reached: tuple[int, int] | None, /) -> list[Any]: ...
