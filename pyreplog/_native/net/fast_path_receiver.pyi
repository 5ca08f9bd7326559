from typing import Any, final
from weakref import ref

@final
class FastPathReceiver:
    def __new__(cls, connection: ref[Any], /) -> FastPathReceiver: ...
    def __call__(self, events: int, /) -> None: ...
