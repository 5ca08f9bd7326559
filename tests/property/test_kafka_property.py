"""Arbitrary bytes as Kafka's messages and record batches; tests/fuzz/fuzz_kafka.py has the check, with a twin in plain Python."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import fuzz_kafka as fuzz
from tests.kafka import twin

unhurried = settings(deadline=None)  # no verdict hangs on the speed of the machine
SEEDS = fuzz.seeds()

changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=5)), max_size=4)


@given(st.integers(0, len(fuzz.MESSAGES) - 1), st.integers(0, 1 << 32))
@unhurried
def test_decode_reverses_encode_of_kafka_messages(number: int, seed: int) -> None:
    key, version, kind = fuzz.MESSAGES[number]
    name, _, lines = twin.TABLE[key, kind]
    message = fuzz.message_of(name, lines, version, Random(seed))
    data = fuzz.codec_of(number).schema.encode(message)
    assert fuzz.codec_of(number).schema.decode(data) == message == twin.decode(key, version, kind, data)
    fuzz.check_message(number, data)


@given(st.sampled_from(SEEDS), changes, st.integers(0, 1 << 16))
@unhurried
def test_changed_kafka_messages_are_decoded_or_refused(seed: bytes, changed: list[tuple[int, bytes]], cut: int) -> None:
    data = bytearray(seed)
    for at, value in changed:
        place = 2 + at % max(len(data) - 2, 1)
        data[place : place + len(value)] = value
    fuzz.check(bytes(data))
    fuzz.check(bytes(data[: cut % (len(data) + 1)]))


@given(st.binary(max_size=200))
@unhurried
def test_arbitrary_bytes_are_kafka_messages_or_refused(data: bytes) -> None:
    fuzz.check(data)


def test_every_seed_of_the_kafka_fuzzer_passes() -> None:
    assert len(SEEDS) > 380
    for seed in SEEDS:
        fuzz.check(seed)
