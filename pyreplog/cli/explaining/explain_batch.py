"""Explains the header of a Kafka record batch, which is the value of a record in a partition's log."""

from __future__ import annotations

from pyreplog._native.system.checksum import crc32c
from pyreplog.cli.explaining import layout
from pyreplog.cli.explaining.explained import Explained
from pyreplog.cli.shared.output import moment, plural
from pyreplog.record_batches.compression import CODECS

_CODEC_NAMES = {number: name for name, number in CODECS.items()}
_TRANSACTION_MARKERS = {0: "aborts its transaction", 1: "commits its transaction"}
_KEY_AT = 5
"""Of a control record: behind its length, attributes, two deltas and the length of its key, each of one byte."""


def is_record_batch(value: bytes) -> bool:
    """Return whether a value is a record batch, damaged or not: its magic and its length say so."""
    length = int.from_bytes(value[8:12], "big", signed=True)
    return (
        len(value) >= layout.RECORD_BATCH_HEADER
        and value[16] == layout.RECORD_BATCH_MAGIC
        and length == len(value) - layout.BATCH_LENGTH_FROM
    )


def explain_batch(value: bytes, offset: int, first_entry: int, count: int) -> list[Explained]:
    """Explain the header of a record batch, and the marker of a control batch.

    Args:
        value: the batch.
        offset: of the batch in the segment file.
        first_entry: the first of the entry numbers that the record takes.
        count: how many it takes.
    """
    values = {field.name: int(field.value(value)) for field in layout.RECORD_BATCH}
    crc = crc32c(value[layout.BATCH_CRC_FROM :])
    meanings: dict[str, tuple[str, bool | None]] = {
        "base_offset": (f"offset {values['base_offset']} is the first", values["base_offset"] == first_entry),
        "batch_length": (f"{values['batch_length']} bytes follow", True),
        "leader_epoch": (f"appended in epoch {values['leader_epoch']} of the leader", values["leader_epoch"] >= 0),
        "magic": (f"record batch of version {values['magic']}", values["magic"] == layout.RECORD_BATCH_MAGIC),
        "batch_crc": (
            f"CRC-32C of bytes {layout.BATCH_CRC_FROM} to {len(value) - 1} of the batch; computed {crc:#010x}",
            values["batch_crc"] == crc,
        ),
        "attributes": _attributes(values["attributes"]),
        "last_delta": (
            f"offset {values['base_offset'] + values['last_delta']} is the last",
            values["last_delta"] == count - 1,
        ),
        "base_time": (_time(values["base_time"]), None),
        "max_time": (f"the latest: {_time(values['max_time'])}", None),
        "producer_id": (_or_none(values["producer_id"], "producer"), values["producer_id"] >= -1),
        "producer_epoch": (_or_none(values["producer_epoch"], "epoch"), values["producer_epoch"] >= -1),
        "base_sequence": (_or_none(values["base_sequence"], "sequence"), values["base_sequence"] >= -1),
        "records": (
            f"{values['records']} {plural(values['records'], 'record')}",
            0 <= values["records"] <= count,
        ),
    }
    explained = [
        Explained(field.name, offset + field.offset, value[field.offset :][: field.size], *meanings[field.name])
        for field in layout.RECORD_BATCH
    ]
    if values["attributes"] & layout.CONTROL:
        explained.append(_marker(value[layout.RECORD_BATCH_HEADER :], offset + layout.RECORD_BATCH_HEADER))
    return explained


def _attributes(value: int) -> tuple[str, bool]:
    codec = _CODEC_NAMES.get(value & layout.CODEC_MASK)
    flags = {
        layout.LOG_APPEND_TIME: "time of the append", layout.TRANSACTIONAL: "transactional", layout.CONTROL: "control",
    }  # fmt: skip
    named = [name for flag, name in flags.items() if value & flag]
    compression = "unknown codec" if codec is None else "not compressed" if codec == "none" else f"compressed: {codec}"
    return ", ".join([compression, *named]), codec is not None


def _marker(record: bytes, offset: int) -> Explained:
    key = record[_KEY_AT : _KEY_AT + 4]
    version, kind = int.from_bytes(key[:2], "big"), int.from_bytes(key[2:], "big")
    meaning = _TRANSACTION_MARKERS.get(kind, f"control record of type {kind}")
    return Explained("marker", offset, record, f"{meaning}; version {version}", len(key) == 4)


def _time(milliseconds: int) -> str:
    return "no time" if milliseconds < 0 else moment(milliseconds * 1000)


def _or_none(value: int, name: str) -> str:
    return f"no {name}" if value == -1 else f"{name} {value}"
