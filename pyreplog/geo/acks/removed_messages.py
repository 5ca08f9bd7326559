"""RemovedMessages: the messages that no cluster stores any more, as far as the neighbours of this one have told.

Each cluster tells its neighbours, for each origin, the offset below which it stores no message and will get none, and
the clusters that the topic is replicated with there. So a cluster that is connected to all others, as in a mesh or in
the middle of a star, knows what is removed everywhere. A cluster that is not, or that has a neighbour that is away or
of an older version, knows nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyreplog.geo.acks.peer import Peer
from pyreplog.origins.origin import Origin


class RemovedMessages:
    """The start offsets of all origins here, and by them and those of the neighbours the removed messages.

    Attributes:
        starts: for each origin, the offset below which no message is stored here, or will be; 0 is left out.
    """

    __slots__ = ("starts",)

    def __init__(self) -> None:
        self.starts: dict[Origin, int] = {}

    def note(self, starts: Mapping[Origin, int]) -> bool:
        """Note start offsets; return whether one is higher than before."""
        raised = {origin: start for origin, start in starts.items() if start > self.starts.get(origin, 0)}
        self.starts.update(raised)
        return bool(raised)

    def everywhere(self, origin: Origin, others: Collection[bytes], peers: Collection[Peer]) -> int:
        """Return the offset at an origin below which no cluster stores a message, or will; 0: unknown.

        Args:
            origin: the origin.
            others: ids of all other clusters that the topic is replicated in, as far as this one knows.
            peers: the neighbours.
        """
        if not peers or {peer.cluster for peer in peers} != {*others}:
            return 0  # a cluster that is no neighbour may store anything
        start = self.starts.get(origin, 0)
        for peer in peers:
            is_believed = origin in peer.proved and peer.starts_with <= {*others}
            start = min(start, peer.starts.get(origin, 0) if is_believed else 0)
        return start
