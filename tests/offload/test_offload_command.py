"""The command, and reports and exports of what it has copied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import pyreplog
from pyreplog import reports
from pyreplog.cli.app import main
from pyreplog.errors import CorruptionError, InvalidArgumentError, NotALogError, StorageError
from tests import samples
from tests.offload.places import KEY, SECRET, Place


@pytest.fixture
def log(tmp_path: Path) -> Path:
    samples.make_log(tmp_path / "log")
    return tmp_path / "log"


def test_offload_command_output_and_exit_codes(
    folder: Place, log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["offload", str(log), folder.url]) == 0
    end = folder.manifest.end
    printed = capfd.readouterr()
    assert printed.out.startswith("3 segments copied, 191.6 KiB\n3 segments, entries 0 to before ")
    assert main(["offload", str(log), folder.url, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["end"], document["generation"], document["copied_segments"], document["segments"]) == (
        end,
        1,
        0,
        3,
    )
    assert main(["offload", str(tmp_path / "none"), folder.url]) == NotALogError.exit_code
    assert main(["offload", str(log), "nowhere"]) == InvalidArgumentError.exit_code
    samples.flip(samples.segments(log)[0], 5000)
    folder.storage.remove(folder.manifest.segments[0].name)
    assert main(["offload", str(log), folder.url]) == CorruptionError.exit_code


def test_reports_and_exports_read_offloaded_logs(folder: Place, log: Path, tmp_path: Path) -> None:
    folder.copy(log)
    end = folder.manifest.end
    rates = reports.run("rate_by_minute", folder.url)
    assert sum(rates["entries"].to_pylist()) == end
    lag = reports.run("replication_lag", str(log), to={"path": folder.url}).to_pylist()
    assert [row["missing_entries"] for row in lag] == [samples.ENTRIES - end]
    assert main(["export", folder.url, "--parquet", str(tmp_path / "parquet")]) == 0
    assert sorted(parquet.read_table(tmp_path / "parquet")["offset"].to_pylist()) == list(range(end))
    page = tmp_path / "page.html"
    assert main(["report", folder.url, "-o", str(page), "--only", "crc_audit", "--only", "size_histogram"]) == 0
    assert page.stat().st_size > 1000


def test_offloads_take_credentials_from_the_environment(s3: dict[str, Any], log: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyreplog", "offload", str(log), "s3://bucket/command", "--json"],
        env={**os.environ, "FSSPEC_S3": json.dumps(s3)}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(Place("s3://bucket/command", s3).table()) == json.loads(done.stdout)["end"]
    with pytest.raises(StorageError, match="s3://nosuchbucket/command") as caught:
        Place("s3://nosuchbucket/command", s3).copy(log)
    assert SECRET not in str(caught.value) and KEY not in str(caught.value)


def test_streams_are_of_logs_that_are_written(folder: Place, log: Path) -> None:
    from pyreplog.spark.stream.logs import LogSource
    from pyreplog.spark.stream.options import StreamOptions

    folder.copy(log)
    with pytest.raises(pyreplog.ConfigError, match="is an offloaded log"):
        LogSource(StreamOptions.of({"path": folder.url}))
