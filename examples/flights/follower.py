"""Follows a log in a process of its own, as `pyreplog tail -f` does, and tells how fast: a JSON object per line.

    follower.py LOG UNTIL [MARK ...]

Ends when it has seen UNTIL entries, with the CRC-32C of all their values end to end. Reports every quarter of a second,
at once when it has seen MARK entries, and gives up when nothing came for half a minute.
"""

from __future__ import annotations

import json
import sys
import time

from crc32c import crc32c

import pyreplog

EVERY_S = 0.25
PATIENCE_S = 30.0


def main(path: str, until: int, marks: list[int]) -> int:
    began = last = time.monotonic()
    seen = before = crc = 0
    with pyreplog.open(path, "r") as log:
        for batch in log.follow_batches(0, timeout=PATIENCE_S):
            seen += len(batch)
            crc = crc32c(batch.packed()[1], crc)
            now = time.monotonic()
            marked = any(seen - len(batch) < mark <= seen for mark in marks)
            if marked or now - last >= EVERY_S or seen >= until:
                report(seen=seen, rate=round((seen - before) / max(now - last, 1e-9)), crc=crc)
                last, before = now, seen
            if seen >= until:
                return 0
    report(error=f"nothing came for {PATIENCE_S:.0f} s, {time.monotonic() - began:.0f} s after the start")
    return 1


def report(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), [int(mark) for mark in sys.argv[3:]]))
