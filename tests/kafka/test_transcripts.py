"""What clients and Apache Kafka 4.1 said to each other, sent to our listener: each difference is explained here.

tests/foreign/record_transcripts.py records the transcripts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from pyreplog.kafka import EmbeddedKafka
from pyreplog.net.sockets import parse_address
from tests.kafka.transcript import HERE, Difference, Replay, read_transcript


class Explained(NamedTuple):
    """A difference that is meant.

    Attributes:
        api: the API.
        path: a regular expression of the whole path.
        why: reason.
    """

    api: str
    path: str
    why: str

    def explains(self, difference: Difference) -> bool:
        return difference.api == self.api and re.fullmatch(self.path, difference.path) is not None


COMMON = (
    Explained("API_VERSIONS", r"api_keys\[17\]\.min_version", "SaslHandshake 0 is followed by tokens without frames"),
    Explained("FIND_COORDINATOR", r"(coordinators\[.*\]\.)?error_message", "there is no text where there is no error"),
)
SESSION = Explained("FETCH", "session_id", "sessions are declined: each fetch names all its partitions")
INTERNAL = Explained("METADATA", r"topics\[__consumer_offsets\].*", "EmbeddedKafka creates it at the start")
DESCRIBED = (
    (r"configs\[[a-z0-9.]+\]", "settings that are not supported are refused, and not listed; requires.sync is our own"),
    (r"configs\[(max\.compaction\.lag|message\.timestamp\.before\.max)\.ms\]\.value", "no limit is -1"),
    (r"configs\[segment\.bytes\]\.value", "-1: the size that the broker is configured with"),
    (r"configs\[(retention|segment)\.ms\]\.config_source", "topics of Kafka clients store Kafka's defaults"),
    (r"configs\[min\.insync\.replicas\]\.config_source", "the listener stores its own default with the topic"),
)
TEXT = "texts of errors are our own"
EXPLAINED: dict[str, tuple[Explained, ...]] = {
    "librdkafka_records": (),
    "librdkafka_transactions": (),
    "librdkafka_consumer_protocol": (),
    "librdkafka_administration": (
        INTERNAL,
        *(Explained("DESCRIBE_CONFIGS", rf"results\[0\]\.{path}", why) for path, why in DESCRIBED if "retention" not in path),
        Explained("DESCRIBE_CONFIGS", r"results\[0\]\.configs\[segment\.ms\]\.config_source", DESCRIBED[3][1]),
        Explained("DESCRIBE_CONFIGS", r"results\[0\]\.configs\[.*\]\.synonyms\[.*\]", "a setting has one name"),
        Explained("DESCRIBE_CONFIGS", r"results\[0\]\.error_message", TEXT),
        Explained("CREATE_TOPICS", r"topics\[.*\]\.error_message", TEXT),
        Explained("CREATE_PARTITIONS", r"results\[.*\]\.error_message", TEXT),
        Explained("PRODUCE", r"responses\[kept\]\.partition_responses\[0\]\.error_message", TEXT),
    ),
    "kafka_python": (SESSION,),
    "aiokafka": (INTERNAL,),
    "java": (
        SESSION,
        *(Explained("CREATE_TOPICS", rf"topics\[java\]\.{path}", why) for path, why in DESCRIBED),
        Explained("FETCH", "error_code", "a fetch of a session: the client would have named its partitions (70)"),
        Explained("CONSUMER_GROUP_DESCRIBE", r"groups\[java-readers\]\.error_message", TEXT),
    ),
}  # fmt: skip


def test_each_transcript_is_replayed() -> None:
    assert {path.stem for path in HERE.glob("*.jsonl")} == EXPLAINED.keys()


@pytest.mark.parametrize("name", EXPLAINED)
def test_apache_kafka_and_the_listener_answer_alike(name: str, tmp_path: Path) -> None:
    explained = (*COMMON, *EXPLAINED[name])
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        replay = Replay(parse_address(kafka.bootstrap_servers))
        try:
            replay.run(read_transcript(name))
        finally:
            replay.close()
    assert not {one for one in replay.differences if not any(rule.explains(one) for rule in explained)}
    assert not {rule for rule in explained if not any(rule.explains(one) for one in replay.differences)}
    for theirs, ours in replay.fetched.values():
        assert {offset: ours.get(offset) for offset in theirs} == theirs
    assert replay.fetched or name == "librdkafka_administration"
