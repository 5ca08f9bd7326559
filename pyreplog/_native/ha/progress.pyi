from typing import final

from _typeshed import ReadableBuffer

@final
class ProgressParser:
    def feed(self, data: ReadableBuffer, /) -> list[int]: ...
