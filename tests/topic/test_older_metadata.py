"""An embedded cluster whose metadata were restored from an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import StaleMetadataError
from pyreplog.ledger.embedded import METADATA


def opened(path: Path, *, older_metadata: bool = False) -> pyreplog.Cluster:
    return pyreplog.Cluster.embedded(path, segment_bytes=1 << 20, older_metadata=older_metadata)


def test_metadata_from_a_backup_are_refused_until_they_are_taken_for_good(tmp_path: Path) -> None:
    """Without the check, messages confirmed since would be lost and their offsets used again, without any error."""
    with opened(tmp_path / "c") as cluster:
        cluster.topic("t").publish_batch([b"a"] * 10)
    backup = Path(shutil.copy(tmp_path / "c" / METADATA, tmp_path / "backup"))
    with opened(tmp_path / "c") as cluster:
        cluster.topic("t").publish_batch([b"b"] * 10)
    newest = Path(shutil.copy(tmp_path / "c" / METADATA, tmp_path / "newest"))
    shutil.copy(backup, tmp_path / "c" / METADATA)
    for _ in range(2):
        with pytest.raises(StaleMetadataError, match="Put the newest copy back"):
            opened(tmp_path / "c")
    shutil.copy(newest, tmp_path / "c" / METADATA)
    with opened(tmp_path / "c") as cluster:
        assert cluster.topic("t").end == 20
    shutil.copy(backup, tmp_path / "c" / METADATA)
    with opened(tmp_path / "c", older_metadata=True) as cluster:
        topic = cluster.topic("t")
        assert topic.end == 10 and topic.publish(b"other") == 10
    with opened(tmp_path / "c") as cluster:
        assert cluster.topic("t").end == 11
