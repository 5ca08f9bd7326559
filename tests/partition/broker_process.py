"""A broker as a process of its own, until SIGTERM.

python -m tests.partition.broker_process DIRECTORY NAME URL [SETTING=NUMBER ...]
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from pyreplog.metadata.url import open_store
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig


def main(directory: str, name: str, url: str, *settings: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads that are made later inherit it
    numbers: Any = {key: int(value) for key, value in (setting.split("=") for setting in settings)}
    defaults: Any = {"segment_bytes": 1 << 20, "lease_ms": 1_000, "lag_ms": 2_000, "checkpoint_ms": 200}
    config = BrokerConfig(**{**defaults, **numbers})
    with open_store(url) as store, Broker(Path(directory), name, store, config=config):
        print("ready", flush=True)
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main(*sys.argv[1:])
