"""Node ids of brokers in Kafka's protocol: numbers of 31 bits, computed from broker names."""

from __future__ import annotations

import mmh3

_HASHED_FROM = 1 << 30
"""First id of those that are hashes."""


def node_id_of(broker: str) -> int:
    """Return the node id of a broker; every broker computes the same one from the name.

    A name that is a number below 2^30, such as `"2"`, is its own id. Ids of other names are hashes from 2^30 on.
    """
    if broker.isascii() and broker.isdigit() and len(broker) < 11 and str(int(broker)) == broker:
        number = int(broker)
        if number < _HASHED_FROM:
            return number
    return _HASHED_FROM | (mmh3.hash(broker, signed=False) & (_HASHED_FROM - 1))
