"""Writes tests/golden/others-v<version>.tar.gz: what clusters, replica groups, backups and offloading leave on disk.

As make.py: once for a new version of the format. A cluster's bookies, its ledgers and topics, with messages of each codec,
acknowledgements and what a producer has published; a member of a group; the position of an applier; a backup;
an offloaded log.
"""

from __future__ import annotations

import socket
import tarfile
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np

import pyreplog
from pyreplog import ha
from pyreplog.config import LogConfig
from pyreplog.ha.relay.position import Applied
from pyreplog.ha.relay.position_file import PositionFile
from pyreplog.log.backup.copying import backup
from pyreplog.offload.copying import offload

VERSION = 2
SEGMENT_BYTES = 1 << 16
START_US = 1_750_000_000_000_000
VALUES = [b"value %d " % number + b"x" * (number * 7 % 300) for number in range(100)]
KEYS = [None if number % 3 == 0 else b"key %d" % (number % 10) for number in range(100)]
CODECS = ("none", "zstd", "lz4")
ACKED = [*range(40), 50, 51, 60]
"""Offsets that are acknowledged, of 100."""
POSITION = Applied(bytes(range(16)), 1 << 40, 77, 99)


def write_cluster(path: Path) -> None:
    """Ledger 0; a topic of each codec, that deduplicates; a subscription of each topic."""
    clock = pyreplog.ManualClock(START_US)
    settings = {"ensemble": 1, "durability": "appended", "retention_bytes": None, "deduplicate": True}
    with pyreplog.Cluster.embedded(path, bookies=2, segment_bytes=SEGMENT_BYTES, clock=clock) as cluster:
        with cluster.create_ledger(ensemble=2, password=b"secret", properties={"of": "golden"}) as ledger:
            for _ in range(5):
                ledger.append_batch(VALUES, KEYS)
        for codec in CODECS:
            topic = cluster.topic(codec, compression=codec, **settings)
            topic.create_subscription("s", start="earliest", type="shared", properties={"a": "b"})
            producer = topic.producer("p")
            producer.publish_batch(VALUES, KEYS, sequences=np.arange(100) * 2, properties=[{"n": "1"}] * 100)
            with topic.subscribe("s") as consumer:
                consumer.acknowledge(ACKED)
                consumer.flush()


def write_log(path: Path) -> None:
    with pyreplog.open(path, segment_bytes=SEGMENT_BYTES, clock=pyreplog.ManualClock(START_US)) as log:
        for _ in range(5):
            log.append_batch(VALUES, KEYS)


def write(folder: Path) -> None:
    write_cluster(folder / "cluster")
    write_log(folder / "log")
    backup(folder / "log", folder / "backup")
    offload(folder / "log", f"file://{folder}/offloaded")
    log = LogConfig(segment_bytes=SEGMENT_BYTES)
    with ha.open_master(folder / "member", name="a", members=["a", "b"], sync_replicas=0, log=log) as node:
        node.append_batch(VALUES, KEYS)
    PositionFile(folder / "applied").begin(POSITION)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, patch.object(socket, "gethostname", lambda: "golden"):
        write(Path(folder))
        with tarfile.open(Path(__file__).with_name(f"others-v{VERSION}.tar.gz"), "w:gz") as archive:
            archive.add(folder, ".", filter=_plain)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without owners; locks and the tail page mean nothing elsewhere."""
    if Path(info.name).name in ("lock", "tail"):
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main()
