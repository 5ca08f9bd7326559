"""A broker as a process of its own, until SIGTERM: `python -m tests.partition.broker_process DIRECTORY NAME URL`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from pyreplog.metadata.url import open_store
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig


def main(directory: str, name: str, url: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads that are made later inherit it
    config = BrokerConfig(segment_bytes=1 << 20, lease_ms=1_000, lag_ms=2_000, checkpoint_ms=200)
    with open_store(url) as store, Broker(Path(directory), name, store, config=config):
        print("ready", flush=True)
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main(*sys.argv[1:])
