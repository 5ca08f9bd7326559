"""RocketMQ mode: the HA protocol of stock RocketMQ 4.9 and 5.x brokers, both ends, byte for byte.

| module | holds |
|---|---|
| `rawlog` | `RawLog`: a broker's commit log, as files (`rawfile`), after crashes (`mending`, `proven`) |
| `records` | RocketMQ's records: `Message`, encode, decode, walk |
| `feeding` | the master's side of a connection, without I/O |
| `pulling` | the slave's side, without I/O |
| `effects` | what the two ask for; `Times` |
| `master`, `link` | `Master`: listens, and feeds slaves |
| `slave` | `Slave`: connects, and copies |

docs/rocketmq.md says what speaks to what, and what the protocol cannot promise.
"""

from __future__ import annotations

from pyreplog.ha.rocketmq.effects import Times
from pyreplog.ha.rocketmq.link import Fed
from pyreplog.ha.rocketmq.master import Master
from pyreplog.ha.rocketmq.pulling import State
from pyreplog.ha.rocketmq.rawlog import FILE_BYTES, RawLog
from pyreplog.ha.rocketmq.records import Message
from pyreplog.ha.rocketmq.slave import Slave

__all__ = ["FILE_BYTES", "Fed", "Master", "Message", "RawLog", "Slave", "State", "Times"]
