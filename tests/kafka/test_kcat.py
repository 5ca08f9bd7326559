"""kcat, which Debian has, against the listener: keys, headers, codecs, groups, metadata. Its librdkafka is of 2023."""

from __future__ import annotations

import json
import random
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.kafka.wire.schema import ApiKey
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, fetch, fetched
from tests.waiting import PATIENCE_S, until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their numbers in Kafka's protocol."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path_factory.mktemp("brokers"), rebalance_delay_ms=0, offsets_partitions=2) as cluster:
        yield cluster.start("1", "2", "3")


def kcat(brokers: KafkaBrokers, *words: object, lines: list[str] | None = None) -> str:
    """Run kcat. lines: its input. Returns what it prints."""
    done = subprocess.run(
        ["kcat", "-q", "-b", brokers.addresses, *map(str, words)],
        input="".join(f"{line}\n" for line in lines or []), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def messages(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def stored_codecs(brokers: KafkaBrokers, topic: str) -> set[int]:
    """The codecs of the batches of partition 0. Each begins with its offset and the size of what follows; the low byte of
    its attributes has the codec."""
    with RawClient(brokers.servers[brokers.leader(topic)]) as client:
        (records,) = fetched(client.ask(ApiKey.FETCH, 4, fetch(0, topic=topic)))
    codecs, at = set(), 0
    while at < len(records):
        codecs.add(records[at + 22] & 7)
        at += 12 + int.from_bytes(records[at + 8 : at + 12], "big")
    return codecs


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_reads_what_kcat_wrote(brokers: KafkaBrokers, codec: str, seed: int) -> None:
    topic = f"codec-{codec}"
    brokers.create(topic, 2, replication_factor=3, min_isr=2)
    rng = random.Random(seed)
    words = ["".join(rng.choices(string.ascii_letters, k=5)) for _ in range(10)]
    sent = {f"k{number}": " ".join(rng.choices(words, k=rng.choice((1, 10, 150)))) for number in range(300)}
    lines = [f"{key}:{value}" for key, value in sent.items()]
    headers = ("-H", "source=a test", "-H", "source=again", "-H", "empty=")
    settings = ("-X", "enable.idempotence=true", "-X", "linger.ms=50")
    kcat(brokers, "-P", "-t", topic, "-K", ":", "-z", codec, *settings, *headers, lines=lines)
    received = messages(kcat(brokers, "-C", "-t", topic, "-e", "-J"))
    assert {message["key"]: message["payload"] for message in received} == sent and len(received) == len(sent)
    for partition in (0, 1):
        offsets = [message["offset"] for message in received if message["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    assert received[0]["headers"] == ["source", "a test", "source", "again", "empty", ""]
    # A batch that does not get smaller, such as one of a short message, is sent as it is.
    assert CODECS.index(codec) in stored_codecs(brokers, topic) <= {0, CODECS.index(codec)}


def test_kcat_lists_the_cluster(brokers: KafkaBrokers) -> None:
    brokers.create("listed", 3, replication_factor=2)

    def listed() -> Any:
        """Brokers learn by their watch of the metadata store who leads on others."""
        answer = json.loads(kcat(brokers, "-L", "-J", "-t", "listed"))
        leaders = [partition["leader"] for topic in answer["topics"] for partition in topic["partitions"]]
        return answer if leaders and -1 not in leaders else None

    answer = until(listed)
    addresses = {number: server.advertised for number, server in zip((1, 2, 3), brokers.servers.values(), strict=True)}
    assert {broker["id"]: broker["name"] for broker in answer["brokers"]} == addresses
    (topic,) = answer["topics"]
    assert [partition["partition"] for partition in topic["partitions"]] == [0, 1, 2]
    for partition in topic["partitions"]:
        replicas = {replica["id"] for replica in partition["replicas"]}
        assert len(replicas) == 2 and partition["leader"] in replicas
        assert {replica["id"] for replica in partition["isrs"]} <= replicas
        assert partition["leader"] == int(brokers.leader("listed", partition["partition"]))


def test_kcat_finds_offsets_by_time(brokers: KafkaBrokers) -> None:
    brokers.create("timed")
    kcat(brokers, "-P", "-t", "timed", lines=["a", "b", "c"])
    first = messages(kcat(brokers, "-C", "-t", "timed", "-e", "-J"))[0]
    assert kcat(brokers, "-Q", "-t", f"timed:0:{first['ts']}").strip() == "timed [0] offset 0"
    assert [m["offset"] for m in messages(kcat(brokers, "-C", "-t", "timed", "-o", -1, "-e", "-J"))] == [2]
    assert [m["offset"] for m in messages(kcat(brokers, "-C", "-t", "timed", "-o", 1, "-c", 1, "-J"))] == [1]


def test_a_group_of_kcat_goes_on_where_it_was(brokers: KafkaBrokers) -> None:
    brokers.create("grouped")
    kcat(brokers, "-P", "-t", "grouped", lines=[str(number) for number in range(10)])
    settings = ("-X", "auto.offset.reset=earliest", "-f", "%s\n")
    assert kcat(brokers, *settings, "-c", 4, "-G", "kcats", "grouped").split() == ["0", "1", "2", "3"]
    assert kcat(brokers, *settings, "-c", 6, "-G", "kcats", "grouped").split() == ["4", "5", "6", "7", "8", "9"]


def test_kcat_sends_files_and_nulls(brokers: KafkaBrokers, tmp_path: Path, seed: int) -> None:
    """A file is one message; -Z makes empty ones null."""
    brokers.create("files")
    path = tmp_path / "file"
    path.write_bytes(b"line\n" * random.Random(seed).randrange(1, 100_000))
    kcat(brokers, "-P", "-t", "files", path)
    kcat(brokers, "-P", "-t", "files", "-Z", "-K", ":", lines=["gone:"])
    first, second = kcat(brokers, "-C", "-t", "files", "-e", "-f", "%k|%S\n").split()
    assert first == f"|{path.stat().st_size}" and second == "gone|-1"
