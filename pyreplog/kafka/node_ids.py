"""Ids of brokers in Kafka's protocol: numbers of 31 bits. Ours have names."""

from __future__ import annotations

import mmh3

_HASHED_FROM = 1 << 30
"""Ids from here on are hashes."""


def node_id_of(broker: str) -> int:
    """Return the id of a broker, which every broker computes alike from its name.

    A name that is a number below 2^30, as in `"2"`, is its id. Other names have a hash from there on.
    """
    if broker.isascii() and broker.isdigit() and len(broker) < 11 and str(int(broker)) == broker:
        number = int(broker)
        if number < _HASHED_FROM:
            return number
    return _HASHED_FROM | (mmh3.hash(broker, signed=False) & (_HASHED_FROM - 1))
