"""Executors in JVMs of their own: they read offloaded segments, from a directory and from S3, and bookies over TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyreplog
from pyreplog.offload.copying import offload
from tests.offload.places import SECRET, serve_s3
from tests.spark.clusters import Nodes
from tests.spark.spark_home import spark_home

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900.0
ENTRIES, SEGMENT = 3000, 64 << 10


def value_of(n: int) -> bytes:
    return (n * 7919).to_bytes(6)


def make_log(path: Path) -> None:
    with pyreplog.open(path, segment_bytes=SEGMENT) as log:
        log.append_batch([value_of(n) for n in range(ENTRIES)], [b"k" * 60] * ENTRIES)


def test_executors_in_their_own_jvm_read_offloaded_logs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_log(log)
    spark_home(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_HOME": str(tmp_path / "home"), "SPARK_LOCAL_IP": "127.0.0.1"}
    with Nodes(tmp_path, ("b0", "b1", "b2")) as nodes, serve_s3() as options:
        with pyreplog.Cluster.connect(nodes.url) as cluster, cluster.create_ledger(3, 2, 2) as ledger:
            ledger.append_batch([value_of(n) for n in range(ENTRIES)])
        end = offload(log, f"file://{tmp_path}/away").manifest.end
        offload(log, "s3://bucket/apart", storage_options=options)
        reads = {
            "file": {"path": f"file://{tmp_path}/away", "minPartitions": "4"},
            "s3": {"path": "s3://bucket/apart", "storageOptions": json.dumps(options), "minPartitions": "4"},
            "tcp": {"cluster": nodes.url, "ledgers": "0", "minPartitions": "4"},
        }
        (tmp_path / "reads.json").write_text(json.dumps(reads))
        with (tmp_path / "output").open("wb") as output:
            done = subprocess.run(
                [sys.executable, "-m", "tests.spark.apart_driver", str(tmp_path)],
                cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=LIMIT_S, check=False,
            )  # fmt: skip
    assert done.returncode == 0, (tmp_path / "output").read_text()
    document = json.loads((tmp_path / "found.json").read_text())
    assert end > ENTRIES // 2
    for name, count in (("file", end), ("s3", end), ("tcp", ENTRIES)):
        assert document["values"][name] == [value_of(n).hex() for n in range(count)]
        assert SECRET not in document["plans"][name]
    assert all("CoarseGrainedExecutorBackend" in command for command in document["above"])
    assert SECRET not in (tmp_path / "output").read_text()
