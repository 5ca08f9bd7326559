"""A position page, as every released version wrote it, is read; this version writes the same, but for the deflation."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from pyreplog.origins.position_page import VERSION, decode, encode
from tests.golden.position_page import LEDGER, OWN, RUNS

GOLDEN = bytes.fromhex(json.loads((Path(__file__).parent / f"position-page-v{VERSION}.json").read_text())["page"])
BODY_AT = 88 + len(OWN.token)


def test_golden_position_page_is_decoded() -> None:
    read = {origin: [column.tolist() for column in columns] for origin, columns in decode(GOLDEN, OWN, LEDGER).items()}
    assert read == {origin: [column.tolist() for column in columns] for origin, columns in RUNS.items()}


def test_position_page_is_encoded_as_the_golden_one() -> None:
    page = encode(OWN, LEDGER, RUNS)
    assert page is not None
    assert page[:8] + page[12:BODY_AT] == GOLDEN[:8] + GOLDEN[12:BODY_AT]
    assert zlib.decompress(page[BODY_AT:]) == zlib.decompress(GOLDEN[BODY_AT:])
