"""An offload that stops half way and waits to be killed: `python -m tests.offload.stopping LOG URL WHERE NUMBER FLAG`.

WHERE: `put`, when half of the object of that NUMBER is written; `before`, `after`: before or after the manifest of that
NUMBER is made. The file FLAG is made then.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyreplog.offload import copying
from pyreplog.offload.storage import Storage


def stop(flag: str) -> None:
    Path(flag).touch()
    signal.pause()


def main(log: str, url: str, where: str, number: int, flag: str) -> None:
    put, create, count = Storage.put, Storage.create, [0, 0]

    def half(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        part = next(iter(parts))
        yield part[: len(part) // 2]
        stop(flag)

    def putting(self: Storage, name: str, parts: Iterable[bytes | memoryview]) -> None:
        count[0] += 1
        put(self, name, half(parts) if (where, count[0]) == ("put", number) else parts)

    def creating(self: Storage, name: str, data: bytes) -> bool:
        count[1] += 1
        if (where, count[1]) == ("before", number):
            stop(flag)
        version = create(self, name, data)
        if (where, count[1]) == ("after", number):
            stop(flag)
        return version

    Storage.put, Storage.create = putting, creating  # type: ignore[method-assign]
    copying.PUBLISH_BYTES = 100_000  # every second segment
    copying.offload(log, url)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
