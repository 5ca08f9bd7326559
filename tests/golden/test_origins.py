"""Bytes of origins, as every released version wrote them, are read; this version writes the same."""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog._native.ledger_log.entries import parse_entries
from pyreplog._native.log.record import NO_EVENT_TIME
from pyreplog._native.topic.messages import decode_messages
from pyreplog.origins.attribute import OriginAttribute
from pyreplog.origins.snapshot import VERSION, decode, encode
from tests.golden.origins import ATTRIBUTES, ORIGINS, STATES, VALUES, records

GOLDEN = {
    name: bytes.fromhex(data)
    for name, data in json.loads((Path(__file__).parent / f"origins-v{VERSION}.json").read_text()).items()
}


def test_golden_records_of_replicated_entries_are_decoded() -> None:
    assert GOLDEN["records"] == records()
    parsed = parse_entries(GOLDEN["records"], ledger=3, first=0, last=len(VALUES) - 1)
    batch = decode_messages(parsed, offset=50, entries=0, size=0)
    assert batch.values() == [value for values in VALUES for value in values]
    origins = [batch.entry_origin(at) for at in range(batch.entries)]
    assert [None if data is None else OriginAttribute.from_bytes(data) for data in origins] == ATTRIBUTES
    assert batch.entry_origin_key.tolist() == [ORIGINS[0].key, 0, ORIGINS[1].key, ORIGINS[0].key]
    assert batch.entry_origin_first.tolist() == [0, -1, 1 << 40, 100]
    times = [None if attribute is None else attribute.publish_time_us for attribute in ATTRIBUTES]
    assert batch.entry_origin_publish_time.tolist() == [NO_EVENT_TIME if time is None else time for time in times]
    assert [message.origin_publish_time for message in batch] == [times[at] for at in batch.entry_index.tolist()]


def test_a_snapshot_of_origins_has_its_golden_bytes() -> None:
    assert GOLDEN["snapshot"] == encode(STATES)
    assert decode(GOLDEN["snapshot"]) == STATES
