"""Writes tests/golden/group-records-v1.json: keys and values of `__consumer_offsets` in all versions.

Run it once for a new version of the file, never again for an old one: old bytes must stay readable.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyreplog.kafka.groups.group_records import (
    VALUE_VERSIONS,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)

VERSION = 1
OFFSET = OffsetCommitValue(1 << 40, 7, "näher", 1_700_000_000_000, 1_700_000_600_000)
GROUP = GroupMetadataValue(
    "consumer", 41, "range", "c-1", 1_700_000_000_001,
    (
        MemberMetadata("c-1", None, "c", "/127.0.0.1", 300_000, 45_000, b"\0\1", b"\2"),
        MemberMetadata("i-2", "i", "größer", "/::1", 60_000, 10_000, b"", b"\xff"),
    ),
)  # fmt: skip
EMPTY = GroupMetadataValue("", 0, None, None, -1, ())


def samples() -> dict[str, bytes]:
    """Return what the file holds, by name."""
    values = {"offset key": encode_offset_key("g", "größe", 11), "group key": encode_group_key("g")}
    for version in VALUE_VERSIONS:
        values[f"offset {version}"] = encode_offset(OFFSET, version)
        values[f"group {version}"] = encode_group(GROUP, version)
        values[f"empty group {version}"] = encode_group(EMPTY, version)
    return values


def main() -> None:
    path = Path(__file__).with_name(f"group-records-v{VERSION}.json")
    assert not path.exists(), f"{path} is there: never write it again"
    path.write_text(json.dumps({name: data.hex() for name, data in samples().items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
