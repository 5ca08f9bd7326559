"""Relay log and applier: a copy of a master's log, and a callback that applies it, each at its own pace.

| module | what it holds |
|---|---|
| `relay` | `Relay`: receives from a master, and applies |
| `applier` | `Applier`: the threads that apply a log |
| `apply_pipeline` | the steps of an applier, without threads |
| `applier_machine` | the state machine of an applier, without I/O |
| `apply_task` | one group of entries on its way through the callback |
| `relay_log_reader` | reads the relay log |
| `position` | the applied position, and the protocol of its stores |
| `position_file`, `sql_position` | stores of the position: a file, and the database that is applied to |
| `space_limit` | pauses the receiver when the relay log takes too much space |
| `refetch` | discards a relay log, to receive it again |
| `config`, `stats` | settings and state of an applier |

docs/relay.md is the guide.
"""

from pyreplog.ha.relay.applier import Applier
from pyreplog.ha.relay.applier_machine import ApplierState
from pyreplog.ha.relay.apply_task import Apply
from pyreplog.ha.relay.config import ApplierConfig
from pyreplog.ha.relay.position import Advance, Applied, PositionStore
from pyreplog.ha.relay.position_file import PositionFile
from pyreplog.ha.relay.refetch import discard, refetch_from
from pyreplog.ha.relay.relay import Relay
from pyreplog.ha.relay.space_limit import PausableReceiver
from pyreplog.ha.relay.sql_position import SqlPosition
from pyreplog.ha.relay.stats import ApplierStats

__all__ = [
    "Advance",
    "Applied",
    "Applier",
    "ApplierConfig",
    "ApplierState",
    "ApplierStats",
    "Apply",
    "PausableReceiver",
    "PositionFile",
    "PositionStore",
    "Relay",
    "SqlPosition",
    "discard",
    "refetch_from",
]
