from types import FrameType, TracebackType
from typing import final

@final
class DeferSigint:
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def note(self, number: int, frame: FrameType | None, /) -> None: ...

defer_sigint: DeferSigint
