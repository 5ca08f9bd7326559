"""Writes tests/golden/record-batches-v2.tar.gz: a log whose records take several entry numbers, behind segments of
version 1, as this version of the format leaves it.

Run it once for a new version of the format, never again for an old one: old files must stay readable.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path

import pyreplog
from pyreplog.config import LogConfig
from pyreplog.log.commit_log import CommitLog

ARCHIVE = Path(__file__).with_name("record-batches-v2.tar.gz")
CLOCK_US = 1_750_000_000_000_000

Row = tuple[int, int, str, int | None]
"""(number of the first entry, entries, value, event time)"""


def value_of(number: int) -> str:
    return f"value {number} " + "x" * (number * 7 % 600)


def write(path: Path) -> list[Row]:
    clock = pyreplog.ManualClock(CLOCK_US)
    with pyreplog.open(path, segment_bytes=1 << 16, clock=clock, spare_segments=1) as log:
        for number in range(250):
            clock.advance(1000)
            log.append(value_of(number).encode())
    rows: list[Row] = [(number, 1, value_of(number), None) for number in range(250)]
    config = LogConfig(segment_bytes=1 << 16, spare_segments=1)
    with CommitLog(path, config, create=False, clock=clock, files=None, record_batches=True) as log:
        for number in range(250, 550):
            clock.advance(1000)
            value, first, event_time = value_of(number), log.end, None if number % 4 else CLOCK_US - number
            count = (1, 2, 3, 50, 100_000)[number % 5]
            if number % 3:
                control = b"control %d" % number if number % 100 == 50 else None
                log.append_record_batches([value.encode()], [count], [event_time], control=control)
            else:
                count = 1
                log.append(value.encode(), event_time=event_time)
            rows.append((first, count, value, event_time))
        cut = next(row for row in rows[540:] if row[1] > 2)
        log.truncate(cut[0] + 1)
    return rows[: rows.index(cut)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        data = json.dumps(write(path)).encode()
        with tarfile.open(ARCHIVE, "w:gz") as archive:
            for file in [*sorted(path.glob("*.*")), path / "checkpoint"]:
                archive.add(file, file.name)
            info = tarfile.TarInfo("rows.json")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main()
