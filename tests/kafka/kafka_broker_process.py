"""A broker with a Kafka listener as a process, until SIGTERM: `python -m tests.kafka.kafka_broker_process DIRECTORY NAME URL`.

Its first line of output is the listener's address.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pyreplog.kafka
from pyreplog.kafka import KafkaConfig
from pyreplog.metadata.url import open_store
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig

OFFSETS_PARTITIONS = 2
TRANSACTION_PARTITIONS = 2


def main(directory: str, name: str, url: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads that are made later inherit it
    config = BrokerConfig(
        segment_bytes=1 << 20, lease_ms=2_000, lag_ms=2_000, transaction_state_partitions=TRANSACTION_PARTITIONS
    )
    of_clients = KafkaConfig(rebalance_delay_ms=0, offsets_partitions=OFFSETS_PARTITIONS)
    with open_store(url) as store, Broker(Path(directory), name, store, config=config) as broker:
        with pyreplog.kafka.Server(broker, config=of_clients) as server:
            print(server.advertised, flush=True)
            signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main(*sys.argv[1:])
