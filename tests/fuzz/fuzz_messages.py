"""Fuzz target of the messages of an entry: any value of a batch entry, against a twin in plain Python.

    python tests/fuzz/fuzz_messages.py -max_total_time=60 [corpus directory]

Needs atheris. The first two bytes say how many messages the entry's record counts and how a compressed body looks.
tests/property/test_messages_property.py puts the bytes that hypothesis makes to the same check.
"""

import sys
from pathlib import Path
from types import FunctionType

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.errors import InvalidEntryError
from tests.fuzz.seeds import seeded
from tests.topic import twin
from tests.topic.entries import as_twin, decoded
from tests.topic.twin import BadEntry, TwinMessage

Found = tuple[bytes, list[TwinMessage]]


def expected(entry: bytes, count: int, body: bytes) -> Found | None:
    """What the twin reads; None: nothing."""
    try:
        producer, messages = twin.decode(entry, lambda *_: body)
    except BadEntry:
        return None
    return (producer, messages) if len(messages) == count else None


def read(entry: bytes, count: int, body: bytes) -> Found | None:
    """What the decoder reads, looked at in every way."""
    try:
        batch = decoded([entry], [count], decompress=lambda *_: body)
    except InvalidEntryError as error:
        assert "expected" in str(error) and "found" in str(error)
        return None
    messages = [as_twin(message) for message in batch]
    assert batch.values() == [message.value for message in messages]
    assert batch.keys() == [message.key for message in messages]
    assert batch.packed()[1].tobytes() == b"".join(message.value for message in messages)
    assert batch.key_size.tolist() == [-1 if message.key is None else len(message.key) for message in messages]
    assert batch.size.tolist() == [len(message.value) for message in messages]
    assert len(batch.key_hash()) == len(batch.event_time) == len(batch.deliver_at) == len(messages) == count
    return batch.entry_producer[0], messages


def without_odd_properties(message: TwinMessage, like: TwinMessage) -> TwinMessage:
    """Names that are not UTF-8 are mended, and of one name the last property counts: these are not compared."""
    names = [name for name, _ in like.properties]
    mended = [name.decode("utf-8", "replace").encode() for name in names]
    return message if mended == names and len({*names}) == len(names) else message._replace(properties=())


def check(data: bytes) -> None:
    if len(data) < 3:
        return
    count, cut, entry = 1 + data[0], data[1], data[2:]
    wanted, batches = expected(entry, count, entry[cut:]), read(entry, count, entry[cut:])
    if wanted is None or batches is None:
        assert wanted is batches is None, (wanted, batches)
        return
    assert batches[0] == wanted[0]
    for mine, other in zip(batches[1], wanted[1], strict=True):
        assert without_odd_properties(mine, other) == without_odd_properties(other, other)


def seeds() -> list[bytes]:
    """Entries with each column, and with all of them."""
    count, columns = 4, [
        {"keys": [b"a", None, b"", b"long key"]},
        {"event_times": [1, None, -5, 1 << 40]},
        {"sequences": [3, 4, 9, 10], "producer": b"me"},
        {"deliver_at": [0, 5, 0, 7]},
        {"properties": [{"a": "b"}, {}, {"c": b"\xff", "d": ""}, {}]},
    ]  # fmt: skip
    every = {name: value for column in columns for name, value in column.items()}
    return [
        bytes((count - 1, 0)) + encode_messages([b"one", b"", b"three", b"v" * 50], **given)
        for given in [{}, *columns, every]
    ]


def main() -> None:
    import atheris

    for function in (expected, read, check):
        globals()[function.__name__] = atheris.instrument_func(function)
    for name, function in vars(twin).items():
        if isinstance(function, FunctionType) and function.__module__ == twin.__name__:
            setattr(twin, name, atheris.instrument_func(function))  # its branches show the way
    atheris.Setup(seeded(sys.argv, seeds()), check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
