"""Writes tests/golden/v<version>.tar.gz: a log directory as this version of the format leaves it.

Run it once for a new version of the format, never again for an old one: old files must stay readable.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyreplog

VERSION = 1


def rows() -> list[dict[str, Any]]:
    """What the log holds."""
    return [
        {
            "value": f"value {number} " + "x" * (number * 7 % 600),
            "key": None if number % 3 == 0 else f"key {number % 10}",
            "event_time": None if number % 4 == 0 else 1_700_000_000_000_000 + number * (-1) ** number,
            "properties": {"n": str(number)} if number % 5 == 0 else {},
        }
        for number in range(300)
    ]


def write(path: Path) -> None:
    clock = pyreplog.ManualClock(1_750_000_000_000_000)
    with pyreplog.open(path, segment_bytes=1 << 16, clock=clock, spare_segments=1) as log:
        for number, row in enumerate(rows()):
            clock.advance(1000)
            if number % 100 == 50:
                log.append_batch([], control=b"control %d" % number)
            key = row["key"].encode() if row["key"] is not None else None
            properties = row["properties"] or None
            log.append(row["value"].encode(), key, event_time=row["event_time"], properties=properties)
        log.truncate(290)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        write(path)
        with tarfile.open(Path(__file__).with_name(f"v{VERSION}.tar.gz"), "w:gz") as archive:
            for file in [*sorted(path.glob("*.*")), path / "checkpoint"]:
                archive.add(file, file.name)
            data = json.dumps(rows()[:290]).encode()
            info = tarfile.TarInfo("rows.json")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main()
