from typing import Final, final

KEPT_MAX: Final[int]

def kept_bytes() -> int: ...

@final
class Block:
    def __init__(self, *args: object, **kwargs: object) -> None: ...  # raises; only native code makes it
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
