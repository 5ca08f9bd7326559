"""Replicated stores of entries that Python can call, all their servers on this machine: one module each."""

from benchmarks.peers.replicated.ledger import OurLedger
from benchmarks.peers.replicated.nats_cluster import NatsCluster
from benchmarks.peers.replicated.peer import ReplicatedPeer
from benchmarks.peers.replicated.postgres_pair import PostgresPair
from benchmarks.peers.replicated.redis_pair import RedisPair

REPLICATED: dict[str, type[ReplicatedPeer]] = {
    peer.__name__: peer for peer in (OurLedger, RedisPair, NatsCluster, PostgresPair)
}

__all__ = ["REPLICATED", "OurLedger", "ReplicatedPeer"]
