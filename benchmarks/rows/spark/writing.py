"""Rows that Spark writes into a topic, exactly once, beside the same rows into Parquet files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.entries import SIZES, VALUES, make_values
from benchmarks.plan import Plan
from benchmarks.result import Comparison, Figure, Section
from benchmarks.rows.spark.rows import as_parquet, write_log
from benchmarks.rows.spark.warm import Spark, warm_spark
from benchmarks.sampling import interleave
from benchmarks.topics import COPIES, cluster
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer

_SIZES = (100, 1024)


def writing(plan: Plan) -> Section:
    """`df.write.format("pyreplog")`."""
    section = Section("spark-write", "Rows of Parquet files into a topic of three copies, by Spark")
    with plan.folder() as folder, warm_spark(plan, folder) as spark:
        for size in _SIZES:
            log, parquet = folder / f"{size}", folder / f"{size}.parquet"
            count = write_log(log, size, plan, segments=1)
            as_parquet(log, parquet)
            section.comparisons.append(_compare(plan.shared(len(_SIZES)), spark, parquet, size, count))
    section.notes.append(
        "Ours are confirmed by two of three bookies, all in the server's process, and looked at for duplicates; of "
        "Parquet there is one uncompressed copy, which nobody syncs."
    )
    return section


def _compare(plan: Plan, spark: Spark, parquet: Path, size: int, count: int) -> Comparison:
    with cluster(plan) as there, TopicServer(there) as server:
        topic = there.topic(
            "rows", ensemble=COPIES, write_quorum=COPIES, ack_quorum=2, durability="appended", deduplicate=True,
            retention_bytes=None, retention_ms=None,
        )  # fmt: skip
        ours = "write_topic", str(parquet), f"pyreplog://{server.address}", "rows"
        others = "write_parquet", str(parquet), f"{parquet}.copy"
        spark.warm(plan, *ours)
        spark.warm(plan, *others)
        before = topic.end
        found = interleave(plan, {"ours": lambda: spark.do(*ours)[0], "others": lambda: spark.do(*others)[0]})
        jobs = _check(topic, before, size, count)
        return Comparison(
            f"rows of {SIZES[size]}",
            Figure("into a topic", count / found["ours"], "/s", "appended", size),
            Figure("Spark into Parquet", count / found["others"], "/s", "appended", size),
            None,
            f"{count:,} rows, each of {jobs} jobs once",
        )


def _check(topic: Topic, start: int, size: int, count: int) -> int:
    """That the topic has each row once for each job from an offset on; how many jobs that were."""
    jobs, rest = divmod(topic.end - start, count)
    found = Counter(value for batch in topic.read(start) for value in batch.values())
    if rest or found != dict.fromkeys(make_values(size), jobs * count // VALUES):
        raise ValueError(f"{topic.end - start} messages are not {count} rows of each job")
    return jobs
