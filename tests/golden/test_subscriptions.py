"""Messages and records of replicated subscriptions of every version are read, and written the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyreplog.geo.acks.journal import VERSION, encode_record, replay
from pyreplog.geo.acks.messages import decode, encode
from tests.golden.subscription_histories import histories
from tests.golden.subscription_starts import starts
from tests.golden.subscriptions import ORIGIN, items, messages, state

RECORDED = {
    int(path.stem.removeprefix("subscriptions-v")): json.loads(path.read_text())
    for path in sorted(Path(__file__).parent.glob("subscriptions-v*.json"))
}


def test_recorded_subscriptions_of_the_present_version_exist() -> None:
    assert {1, VERSION} <= RECORDED.keys()


@pytest.mark.parametrize("version", RECORDED)
@pytest.mark.parametrize("name", messages())
def test_golden_messages_of_subscriptions_are_decoded_and_encoded(version: int, name: str) -> None:
    data, message = bytes.fromhex(RECORDED[version][name]), messages()[name]
    decoded = decode(data)
    assert encode(decoded) == encode(message) == data
    if name in ("summary", "digest", "stored"):
        assert decoded == message


@pytest.mark.parametrize("name", histories())
def test_golden_histories_are_decoded_and_encoded(name: str) -> None:
    recorded = json.loads(Path(__file__).with_name("subscription-histories-v1.json").read_text())
    data, message = bytes.fromhex(recorded[name]), histories()[name]
    assert encode(message) == data
    assert decode(data) == message


@pytest.mark.parametrize("name", starts())
def test_golden_start_offsets_are_decoded_and_encoded(name: str) -> None:
    recorded = json.loads(Path(__file__).with_name("subscription-starts-v1.json").read_text())
    data, message = bytes.fromhex(recorded[name]), starts()[name]
    assert encode(message) == data
    assert decode(data) == message


@pytest.mark.parametrize("version", RECORDED)
def test_golden_journal_records_are_decoded_and_encoded(version: int) -> None:
    record, snapshot = (bytes.fromhex(RECORDED[version][name]) for name in ("record", "snapshot"))
    assert (record, snapshot) == (encode_record(1, items()), encode_record(9, items(), is_snapshot=True))
    for records, sequence in (([record], 1), ([record, snapshot], 9)):
        replayed = replay(records)
        assert replayed.sequence == sequence
        assert replayed.lifecycles.keys() == {"s"}
        restored = replayed.lifecycles["s"].state
        assert restored == state()
        assert restored is not None and restored.acks.last(ORIGIN) == 299_999
        assert [item.kind for item in replayed.unknown] == [77]
