from typing import final

from _typeshed import ReadableBuffer

@final
class SlaveOffsetParser:
    def feed(self, data: ReadableBuffer, /) -> list[int]: ...
