"""All rows, in the order of the goals; and the bounds of goals that are not met."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.bounds.batches import batches as batches_bound
from benchmarks.bounds.call import call
from benchmarks.bounds.copies import copies
from benchmarks.bounds.interruptions import interruptions
from benchmarks.bounds.io_threads import io_threads
from benchmarks.bounds.landing import landing
from benchmarks.bounds.pipeline import pipeline
from benchmarks.bounds.published import published
from benchmarks.bounds.roundtrip import roundtrip
from benchmarks.bounds.threads import threads
from benchmarks.plan import Plan
from benchmarks.proc import Load
from benchmarks.result import Section
from benchmarks.rows.append import batches, single
from benchmarks.rows.follower import follower
from benchmarks.rows.fresh import fresh
from benchmarks.rows.geo.catchup import catchup
from benchmarks.rows.geo.failover import failover
from benchmarks.rows.geo.hop import hop
from benchmarks.rows.geo.opening import opening
from benchmarks.rows.geo.replication import replication
from benchmarks.rows.geo.stored_bytes import stored_bytes
from benchmarks.rows.geo.topics import topics as geo_topics
from benchmarks.rows.ha.client import client
from benchmarks.rows.ha.fanout import fanout
from benchmarks.rows.ha.live import live
from benchmarks.rows.ha.memory import memory as ha_memory
from benchmarks.rows.ha.redis import redis
from benchmarks.rows.ha.stream import stream
from benchmarks.rows.ha.sync import sync
from benchmarks.rows.kafka import decoding
from benchmarks.rows.ledgers.backlog import backlog
from benchmarks.rows.ledgers.embedded import embedded
from benchmarks.rows.ledgers.latency import latency
from benchmarks.rows.ledgers.peers import peers as ledger_peers
from benchmarks.rows.ledgers.pipelined import pipelined
from benchmarks.rows.ledgers.recovery import recovery as ledger_recovery
from benchmarks.rows.ledgers.recovery_copy import recovery_copy
from benchmarks.rows.ledgers.scrub import scrub
from benchmarks.rows.ledgers.striped import striped
from benchmarks.rows.ledgers.synced import synced as ledger_synced
from benchmarks.rows.memory import memory
from benchmarks.rows.partitions.append import append as partitions_append
from benchmarks.rows.partitions.catch_up import catch_up
from benchmarks.rows.peers import groups, peers
from benchmarks.rows.read import read
from benchmarks.rows.recovery import recovery
from benchmarks.rows.scan import scan
from benchmarks.rows.spark.memory import memory as spark_memory
from benchmarks.rows.spark.minutes import minutes
from benchmarks.rows.spark.planning import planning
from benchmarks.rows.spark.reading import parsing, reading
from benchmarks.rows.spark.striped import striped as spark_striped
from benchmarks.rows.spark.writing import writing
from benchmarks.rows.synced import callers, one
from benchmarks.rows.tail import tail
from benchmarks.rows.topics.backlog import backlog as topic_backlog
from benchmarks.rows.topics.consume import consume
from benchmarks.rows.topics.contended import contended
from benchmarks.rows.topics.latency import latency as topic_latency
from benchmarks.rows.topics.memory import memory as topic_memory
from benchmarks.rows.topics.peers import peers as topic_peers
from benchmarks.rows.topics.publish import publish

Row = Callable[[Plan], Section]

ROWS: dict[str, Row] = {
    "append": single,
    "batch": batches,
    "fresh": fresh,
    "tail": tail,
    "synced": one,
    "groups": groups,
    "callers": callers,
    "scan": scan,
    "read": read,
    "follower": follower,
    "peers": peers,
    "recovery": recovery,
    "memory": memory,
    "ledgers-pipelined": pipelined,
    "ledgers-latency": latency,
    "ledgers-synced": ledger_synced,
    "ledgers-embedded": embedded,
    "ledgers-read": striped,
    "ledgers-recovery": ledger_recovery,
    "ledgers-memory": backlog,
    "ledgers-scrub": scrub,
    "recovery-copy": recovery_copy,
    "ledgers-peers": ledger_peers,
    "ha-stream": stream,
    "ha-live": live,
    "ha-client": client,
    "ha-sync": sync,
    "ha-fanout": fanout,
    "ha-redis": redis,
    "ha-memory": ha_memory,
    "topics-publish": publish,
    "topics-consume": consume,
    "topics-latency": topic_latency,
    "topics-contended": contended,
    "topics-backlog": topic_backlog,
    "topics-memory": topic_memory,
    "topics-peers": topic_peers,
    "geo-replication": replication,
    "geo-hop": hop,
    "geo-catchup": catchup,
    "geo-failover": failover,
    "geo-topics": geo_topics,
    "geo-opening": opening,
    "geo-stored": stored_bytes,
    "kafka-wire": decoding,
    "partitions-append": partitions_append,
    "partitions-catch-up": catch_up,
    "reports": minutes,
    "spark-read": reading,
    "spark-parsing": parsing,
    "spark-planning": planning,
    "spark-memory": spark_memory,
    "spark-striped": spark_striped,
    "spark-write": writing,
}


BOUNDS: dict[str, Row] = {
    "bound-call": call,
    "bound-interruptions": interruptions,
    "bound-threads": threads,
    "bound-roundtrip": roundtrip,
    "bound-copies": copies,
    "bound-pipeline": pipeline,
    "bound-published": published,
    "bound-landing": landing,
    "bound-batches": batches_bound,
    "bound-io-threads": io_threads,
}


def measure(name: str, plan: Plan) -> Section:
    """One row or bound, and what else the machine did meanwhile."""
    load, begin = Load(), time.monotonic()
    section = (ROWS | BOUNDS)[name](plan)
    section.others, section.seconds = load.others(), time.monotonic() - begin
    return section
