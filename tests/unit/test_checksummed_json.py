"""Sealed JSON: what was written comes back, and whatever is not as it was written is refused by a ValueError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog.checksummed_json import dump_checksummed, load_checksummed
from pyreplog.errors import FormatVersionError

CONTENT: dict[str, Any] = {"uuid": "ab" * 16, "pieces": [{"base": 0, "sealed": True}, {"base": 1 << 62}], "none": None}
SEALED = dump_checksummed("a format", 1, CONTENT)


def test_load_returns_the_stored_content() -> None:
    assert load_checksummed(SEALED, "a format", 1, "here") == CONTENT
    assert load_checksummed(SEALED, "a format", 2, "here") == CONTENT


@given(st.data())
def test_a_changed_byte_is_no_other_content(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(SEALED) - 1))
    changed = SEALED[:at] + bytes([data.draw(st.integers(0, 255))]) + SEALED[at + 1 :]
    try:
        assert load_checksummed(changed, "a format", 1, "here") == CONTENT
    except (ValueError, FormatVersionError):
        assert changed != SEALED


def test_load_of_another_format_or_a_newer_version_raises() -> None:
    with pytest.raises(ValueError, match="format 'a format'"):
        load_checksummed(SEALED, "another", 1, "here")
    with pytest.raises(FormatVersionError, match="here"):
        load_checksummed(dump_checksummed("a format", 3, CONTENT), "a format", 2, "here")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"7", b'"text"', b"{}", b"\xff", b"[" * 100_000,
        json.dumps({"format": "a format", "version": "1", "crc32c": 0, "content": {}}).encode(),
        json.dumps({"format": "a format", "version": 1, "crc32c": 0, "content": {}}).encode(),
        json.dumps({"format": "a format", "version": 1, "crc32c": None, "content": []}).encode(),
        json.dumps({"format": "a format", "version": 1, "content": {}}).encode(),
    ],
)  # fmt: skip
def test_load_of_invalid_checksummed_json_raises_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        load_checksummed(data, "a format", 1, "here")
