"""RocketMQ mode: the HA protocol of stock RocketMQ 4.9 and 5.x brokers, both ends, byte for byte.

| module | what it holds |
|---|---|
| `raw_log` | `RawLog`: a broker's commit log in files |
| `raw_file` | one segment file |
| `raw_log_recovery` | finds the end of a log after a crash |
| `synced_position` | the file with the position up to which a log is known to be synced |
| `records` | RocketMQ's records: `RocketMQMessage`, encode, decode, verify |
| `slave_feed_machine` | the state machine of the master's side of a connection |
| `slave_machine` | the state machine of the slave's side |
| `effects` | effects of the two; `Timeouts` |
| `master` | `RocketMQMaster`: listens, and sends the log to slaves |
| `slave_connection` | the connection to one slave |
| `slave` | `RocketMQSlave`: connects, and copies the log |

docs/rocketmq.md lists the versions that work together, and what the protocol cannot guarantee.
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
