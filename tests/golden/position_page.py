"""Writes tests/golden/position-page-v1.json: the positions of one closed ledger.

Run it once for a new version of the format, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pyreplog.origins.origin import Origin
from pyreplog.origins.position_page import VERSION, Runs, SealedLedger, encode

OWN = Origin(bytes(range(16)), "0123456789abcdef")
LEDGER = SealedLedger(1 << 33, 1000, 100_000, 40, 1 << 20, 1_750_000_000_000_000)


def runs_of(*rows: tuple[int, int, int]) -> Runs:
    firsts, offsets, counts = np.array(rows, np.int64).T
    return firsts, offsets, counts


RUNS = {
    Origin(b"\xff" * 16, "tökén"): runs_of((0, 1000, 3), (3, 1010, 400), (1 << 40, 80_000, 2)),
    Origin(b"b" * 16, "b"): runs_of((7, 1003, 1)),
}


def main() -> None:
    path = Path(__file__).with_name(f"position-page-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    page = encode(OWN, LEDGER, RUNS)
    assert page is not None
    path.write_text(json.dumps({"page": page.hex()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
