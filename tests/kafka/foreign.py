"""The schemas of two other projects, as oracles: kio and kafka-python. Their values are compared as plain data."""

from __future__ import annotations

import dataclasses
import datetime
import io
import types
import typing
import uuid
import warnings
from functools import cache
from random import Random
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from pyreplog.kafka.wire.messages import ZERO_UUID

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its files with importlib.resources.read_text
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl  # noqa: F401  its classes register themselves
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.data_container import DataContainer

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
INTS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
TEXTS = ["", "a", "topic-1", "grün", "x" * 200, "_internal.topic"]

PREFIXES = ("partition_", "topic_", "cluster_")
"""Some names of fields are longer in ours."""

NOT_IN_KAFKA_PYTHON = {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}

# ---- kio -------------------------------------------------------------------------------------------------------


def kio_class(key: int, version: int, kind: str) -> Any:
    return (load_request_schema if kind == "Request" else load_response_schema)(key, version)


def kio_encode(value: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(value))(buffer, value)
    return buffer.getvalue()


def kio_decode(cls: Any, data: bytes) -> Any:
    """Also demands that the message ends where the bytes do."""
    value, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return value


def kio_accepts(cls: Any, data: bytes) -> bool:
    try:
        return bool(entity_reader(cls)(data, 0)[1] == len(data))
    except (SerialError, ValueError, TypeError, OverflowError, EOFError, IndexError, MemoryError):
        return False


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def draw_number(rng: Random, bits: int) -> int:
    return rng.choice([0, 1, -1, (1 << bits) - 1, -(1 << bits), rng.randint(-100, 100), rng.getrandbits(bits)])


def _draw_plain(kind: str, rng: Random) -> Any:
    if kind in INTS:
        return draw_number(rng, INTS[kind])
    if kind == "error_code":
        return rng.choice(list(ErrorCode))
    if kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=rng.choice([0, 1, -1, 30_000, 2**31 - 1]))
    if kind == "datetime_i64":
        return EPOCH + datetime.timedelta(milliseconds=rng.choice([0, 1, 1_700_000_000_123]))
    if kind == "uuid":
        return uuid.UUID(int=rng.getrandbits(128) or 1)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice([0.0, -1.5, 1e300, float("inf"), rng.random()])
    if kind == "string":
        return rng.choice(TEXTS)
    assert kind in ("bytes", "records"), kind
    return rng.randbytes(rng.choice([0, 1, 100, 5000]))


def _draw(hint: Any, kind: str | None, rng: Random) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return None if rng.random() < 0.3 else _draw(options[0], kind, rng)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_draw(item, kind, rng) for _ in range(rng.choice([0, 1, 1, 2, 5])))
    if dataclasses.is_dataclass(hint):
        return kio_value(hint, rng)
    assert kind is not None
    return _draw_plain(kind, rng)


def kio_value(cls: Any, rng: Random) -> Any:
    """Draw a value of a class of kio."""
    hints, values = _hints(cls), {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING and rng.random() < 0.3:
            continue
        values[field.name] = _draw(hints[field.name], field.metadata.get("kafka_type"), rng)
    return cls(**values)


def kio_plain(value: Any, kind: str | None = None) -> Any:
    """Return a value of kio as ours has it: numbers, text, bytes, tuples, and structs as dicts."""
    if dataclasses.is_dataclass(value):
        return {field.name: kio_plain(getattr(value, field.name), field.metadata.get("kafka_type"))
                for field in dataclasses.fields(value)}  # fmt: skip
    if isinstance(value, tuple):
        return tuple(kio_plain(item, kind) for item in value)
    if isinstance(value, ErrorCode):
        return value.value
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if kind == "datetime_i64":
        return -1 if value is None else (value - EPOCH) // datetime.timedelta(milliseconds=1)
    if kind == "uuid":
        return ZERO_UUID if value is None else value.bytes
    return bytes(value) if isinstance(value, bytes) else value


# ---- ours ------------------------------------------------------------------------------------------------------


def is_struct(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Compare a message with plain data. A field that the others lack must be the default."""
    if is_struct(ours) and isinstance(theirs, dict):
        wrong, left = [], dict(theirs)
        for name, value in ours._asdict().items():
            for other in (name, name.removesuffix("_ms"), *(name.removeprefix(prefix) for prefix in PREFIXES)):
                if other in left:
                    wrong += differences(value, left.pop(other), f"{path}.{name}")
                    break
            else:
                if value != getattr(type(ours)(), name):
                    wrong.append(f"{path}.{name}: {value!r} is not in the other message")
        return wrong + [f"{path}.{name}: is not in ours" for name in left]
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [wrong for number, (one, other) in pairs for wrong in differences(one, other, f"{path}[{number}]")]
    if isinstance(ours, memoryview):
        ours = bytes(ours)
    return [] if (ours, type(ours)) == (theirs, type(theirs)) else [f"{path}: {ours!r}, not {theirs!r}"]


# ---- kafka-python ----------------------------------------------------------------------------------------------


def _subclasses(cls: type) -> list[type]:
    return [cls, *(found for child in cls.__subclasses__() for found in _subclasses(child))]


@cache
def kafka_python_class(name: str) -> Any:
    """Return the class of a message by its name, as in FetchRequest."""
    (cls,) = [cls for cls in _subclasses(ApiMessage) if cls.__name__ == name]
    return cls


def _their_name(field: Any, ours: Any) -> str:
    """Return our name of their field."""
    for name in (field.name, *(f"{prefix}{field.name}" for prefix in PREFIXES)):
        if name in ours._fields:
            return str(name)
    raise AssertionError(f"{type(ours).__name__} has no {field.name}")


def _to_kafka_python(field: Any, value: Any, version: int) -> Any:
    if value is None:
        return None
    if field.is_struct_array():
        return [_struct_of(field, item, version) for item in value]
    if field.is_array():
        return [uuid.UUID(bytes=item) if item and field.type_str == "uuid" else item for item in value]
    if field.is_struct():
        return _struct_of(field, value, version)
    if field.type_str == "uuid":
        return uuid.UUID(bytes=value)
    if field.name == "authorized_operations":  # they have a set of bits, and another name
        return {bit for bit in range(32) if value >> bit & 1}
    return bytes(value) if isinstance(value, memoryview) else value


def _struct_of(field: Any, ours: Any, version: int) -> Any:
    if not field.has_data_class():
        field.set_data_class(type(field.type_str, (DataContainer,), {"_struct": field}))
    return field.data_class(version=version, **_values(field, ours, version))


def _values(field: Any, ours: Any, version: int) -> dict[str, Any]:
    values = {}
    for item in field._fields:
        if not item.for_version_q(version):
            continue
        name = _their_name(item, ours)
        value = getattr(ours, name)
        if item.tagged_field_q(version) and value == getattr(type(ours)(), name):
            continue
        values[item.name] = _to_kafka_python(item, value, version)
    return values


def kafka_python_encode(name: str, version: int, ours: Any) -> bytes:
    """Return what kafka-python makes of our message."""
    cls = kafka_python_class(name)
    return bytes(cls(version=version, **_values(cls._struct, ours, version)).encode())


def _from_kafka_python(field: Any, value: Any, version: int) -> Any:
    if value is None:
        return ZERO_UUID if field.type_str == "uuid" and not field.is_array() else None
    if field.is_struct_array():
        return tuple(_plain_struct(field, item, version) for item in value)
    if field.is_array():
        return tuple(ZERO_UUID if item is None else _from_plain(item) for item in value)
    return _plain_struct(field, value, version) if field.is_struct() else _from_plain(value)


def _from_plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, set):
        return sum(1 << bit for bit in value) - (1 << 32 if 31 in value else 0)
    return bytes(value) if isinstance(value, memoryview) else value


def _plain_struct(field: Any, theirs: Any, version: int) -> dict[str, Any]:
    plain = {}
    for item in field._fields:
        value = _from_kafka_python(item, getattr(theirs, item.name), version)
        if not item.for_version_q(version) or (value is None and item.tagged_field_q(version)):
            continue
        if item.name == "authorized_operations" and value is None:
            value = -(1 << 31)
        plain[item.name] = value
    return plain


def kafka_python_plain(name: str, version: int, data: bytes) -> dict[str, Any]:
    """Return what kafka-python decodes, as ours has it. Tagged fields that are not there are left out."""
    cls = kafka_python_class(name)
    return _plain_struct(cls._struct, cls.decode(data, version=version), version)
