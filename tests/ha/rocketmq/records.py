"""Messages and logs of RocketMQ for tests."""

from __future__ import annotations

import random
from pathlib import Path

from pyreplog.rocketmq.raw_log import RawLog
from pyreplog.rocketmq.records import RocketMQMessage

FILE_BYTES = 8192


def message(number: int, size: int = 100) -> RocketMQMessage:
    return RocketMQMessage(
        topic="flights",
        body=random.Random(number).randbytes(size),
        properties={"KEYS": f"key{number}", "TAGS": "late"},
        queue_offset=number,
        born_ms=1_700_000_000_000 + number,
        stored_ms=1_700_000_000_001 + number,
        born_host=("10.1.2.3", 4567),
        store_host=("10.1.2.4", 10911),
    )


def fill(log: RawLog, count: int, size: int = 100, first: int = 0) -> int:
    """Append messages; return the end of the log."""
    for number in range(first, first + count):
        log.put(message(number, size))
    return log.end


def contents(directory: Path) -> dict[str, bytes]:
    """Return the bytes of all segment files, by name."""
    return {path.name: path.read_bytes() for path in sorted((directory / "commitlog").iterdir())}


def data_of(log: RawLog) -> bytes:
    """Return all bytes of a log."""
    content, position = bytearray(), log.start
    while position < log.end:
        view = log.view(position, log.end)
        content += view
        position += len(view)
    return bytes(content)
