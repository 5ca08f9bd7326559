"""Commands and errors about the directory of a cluster that a process embeds."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import pyreplog
from pyreplog.bookie.local_bookie import LocalBookie
from pyreplog.cli.app import main
from pyreplog.errors import LockedError


def test_fsck_checks_the_log_of_a_bookie_that_has_it_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its entries have the numbers of their ledgers."""
    with pyreplog.Cluster.embedded(tmp_path / "cluster", segment_bytes=1 << 20) as cluster:
        with cluster.create_ledger(3) as ledger:
            ledger.append_batch([b"x"] * 5)
        assert main(["fsck", str(tmp_path / "cluster" / "bookie-0" / "log")]) == 0
    shown = capsys.readouterr().out
    assert "entries   5 intact\n" in shown and f"open for writing in process {os.getpid()}\n" in shown


def test_stat_names_the_process_that_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pyreplog.open(tmp_path / "log"):
        assert main(["stat", str(tmp_path / "log")]) == 0
    assert f"process {os.getpid()}\n" in capsys.readouterr().out


def test_locked_error_of_a_bookie_or_cluster_directory_advises_no_read_mode(tmp_path: Path) -> None:
    """A log can be read beside its writer; a bookie and a cluster have no such mode."""
    with pyreplog.Cluster.embedded(tmp_path / "cluster") as _, pytest.raises(LockedError) as caught:
        pyreplog.Cluster.embedded(tmp_path / "cluster")
    assert "one process at a time embeds a cluster" in str(caught.value) and "mode=" not in str(caught.value)
    assert caught.value.pid == os.getpid() and str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with LocalBookie(tmp_path / "bookie"), pytest.raises(LockedError, match="one process at a time") as caught:
        LocalBookie(tmp_path / "bookie")
    assert "mode=" not in str(caught.value)
    with pyreplog.open(tmp_path / "log"), pytest.raises(LockedError, match="open it with mode='r' to read"):
        pyreplog.open(tmp_path / "log")
