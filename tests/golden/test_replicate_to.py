"""Lists of clusters, as every released version wrote them, are read; this version writes the same."""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.topic.messages import decode_messages
from pyreplog.origins.attribute import TAG_ORIGIN, OriginAttribute
from pyreplog.origins.replicate_to import TAG_REPLICATE_TO, decode_names
from tests.golden.replicate_to import LISTS, ORIGIN, VERSION, records

GOLDEN = bytes.fromhex(json.loads((Path(__file__).parent / f"replicate-to-v{VERSION}.json").read_text())["records"])


def test_records_of_entries_that_go_to_named_clusters() -> None:
    assert records() == GOLDEN
    parsed = parse_entries(GOLDEN, ledger=3, first=0, last=len(LISTS) - 1)
    attributes = [dict(record.attributes) for record in parsed]
    values = [tags.get(TAG_REPLICATE_TO) for tags in attributes]
    assert [None if value is None else decode_names(value) for value in values] == LISTS
    assert OriginAttribute.from_bytes(attributes[-1][TAG_ORIGIN]) == ORIGIN
    batch = decode_messages(parsed, offset=50, entries=0, size=0)
    assert batch.entry_origin_first.tolist() == [-1, -1, -1, 7] and len(batch) == 2 * len(LISTS)
