"""Segments of the logs that tests make, as small as the largest entry allows.

With the defaults each log has 64 MiB allocated or written with zeros, and two such segments more soon after: all tests
together would write more than 100 GiB, and wait for it. A test that says a size has that one, and processes that tests
start have the defaults.
"""

from __future__ import annotations

from pyreplog.bookie.config import BookieConfig
from pyreplog.config import LogConfig
from pyreplog.partition.config import BrokerConfig

SEGMENT_BYTES = (4 << 20) + (64 << 10)
"""More than the largest entry of a ledger takes."""


def make_small() -> None:
    """Change the default of `segment_bytes` in this process, and in those that it forks."""
    for config in (LogConfig, BookieConfig, BrokerConfig):
        config.segment_bytes = SEGMENT_BYTES
        config.__init__.__kwdefaults__["segment_bytes"] = SEGMENT_BYTES  # type: ignore[attr-defined, misc]
