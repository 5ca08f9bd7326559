"""Relay log and applier: a copy of a master's log, and a callback that applies it, each at its own pace.

| modules | what they are |
|---|---|
| `relay` | the whole: receives from a master, and applies |
| `applier`, `apply_pipeline`, `applier_machine` | the applier; its steps, without threads; its decisions, without I/O |
| `apply_task`, `relay_log_reader` | one group on its way through the callback; the relay log, as it is read |
| `position`, `position_file`, `sql_position` | how far it is applied; kept in a file, or in the applied database |
| `space_limit`, `refetch` | the space that it may take; throwing it away and receiving again |
| `config`, `stats` | settings; what an applier tells of itself |

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
