"""RocketMQ mode: the HA protocol of stock RocketMQ 4.9 and 5.x brokers, both ends, byte for byte.

| module | holds |
|---|---|
| `raw_log` | `RawLog`: a broker's commit log in files (`raw_file`); crashes (`raw_log_recovery`, `synced_position`) |
| `records` | RocketMQ's records: `RocketMQMessage`, encode, decode, walk |
| `slave_feed_machine` | the master's side of a connection, without I/O |
| `slave_machine` | the slave's side, without I/O |
| `effects` | what the two ask for; `Timeouts` |
| `master`, `slave_connection` | `RocketMQMaster`: listens, and feeds slaves |
| `slave` | `RocketMQSlave`: connects, and copies |

docs/rocketmq.md says what speaks to what, and what the protocol cannot promise.
"""

from __future__ import annotations

from pyreplog.rocketmq.effects import Timeouts
from pyreplog.rocketmq.master import RocketMQMaster
from pyreplog.rocketmq.raw_log import FILE_BYTES, RawLog
from pyreplog.rocketmq.records import RocketMQMessage
from pyreplog.rocketmq.slave import RocketMQSlave
from pyreplog.rocketmq.slave_connection import SlaveStatus
from pyreplog.rocketmq.slave_machine import SlaveState

__all__ = [
    "FILE_BYTES",
    "RawLog",
    "RocketMQMaster",
    "RocketMQMessage",
    "RocketMQSlave",
    "SlaveState",
    "SlaveStatus",
    "Timeouts",
]
