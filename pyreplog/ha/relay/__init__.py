"""Relay log and applier: a copy of a master's log, and a callback that applies it, each at its own pace.

| modules | what they are |
|---|---|
| `relay` | the whole: receives from a master, and applies |
| `applier`, `pipeline`, `applying` | the applier; its steps, without threads; its decisions, without I/O |
| `task`, `source` | one group on its way through the callback; the relay log, as it is read |
| `position`, `positionfile`, `sqlposition` | how far it is applied; kept in a file, or in the applied database |
| `space`, `refetch` | the space that it may take; throwing it away and receiving again |
| `config`, `stats` | settings; what an applier tells of itself |

docs/relay.md is the guide.
"""

from pyreplog.ha.relay.applier import Applier
from pyreplog.ha.relay.applying import State
from pyreplog.ha.relay.config import ApplierConfig
from pyreplog.ha.relay.position import Advance, Applied, PositionStore
from pyreplog.ha.relay.positionfile import PositionFile
from pyreplog.ha.relay.refetch import discard, refetch_from
from pyreplog.ha.relay.relay import Relay
from pyreplog.ha.relay.space import Receiver
from pyreplog.ha.relay.sqlposition import SqlPosition
from pyreplog.ha.relay.stats import ApplierStats
from pyreplog.ha.relay.task import Apply

__all__ = [
    "Advance",
    "Applied",
    "Applier",
    "ApplierConfig",
    "ApplierStats",
    "Apply",
    "PositionFile",
    "PositionStore",
    "Receiver",
    "Relay",
    "SqlPosition",
    "State",
    "discard",
    "refetch_from",
]
