"""`pyreplog topic` and `pyreplog subscription`, on an embedded cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import Message
from pyreplog.cli.app import main
from pyreplog.cli.topics import topic_consume
from pyreplog.cluster import Cluster
from pyreplog.origins.origin import Gap, GapCause, Origin, OriginEntry
from pyreplog.origins.replicate_to import decode_names
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer
from tests.cli.support import KEPT, Done, Run, process
from tests.waiting import PATIENCE_S

LINES = b"".join(b"k%d:line %d\n" % (number % 3, number) for number in range(1000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("topics") / "cluster"
    Cluster.embedded(path, segment_bytes=64 << 10).close()
    return path


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Each test has a topic of its own."""
    return str(request.node.name)


@pytest.fixture
def topic(run: Run, folder: Path, name: str) -> Callable[..., Done]:
    """Run an action on the test's topic, which is there."""

    def topic(action: str, *arguments: object, group: str = "topic") -> Done:
        return run(group, action, folder, name, *arguments)

    assert topic("create", *KEPT).code == 0
    return topic


def rows(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


# ---- publishing and consuming -----------------------------------------------------------------------------------


def test_topic_consume_prints_the_lines_that_were_published(
    topic: Callable[..., Done], folder: Path, name: str
) -> None:
    done = process("topic", "publish", "--key-separator", ":", "--batch", 100, folder, name, data=LINES + b"no end")
    assert done.code == 0 and f"{name}: 1,001 messages, offsets 0 to 1,000" in done.out, done.error
    output = topic("consume", "--keys")
    assert output.out.encode() == LINES.replace(b":", b"\t") + b"\tno end\n"
    assert topic("consume", "--from", 999).out == "line 999\nno end\n"
    assert topic("stats", "--json").json["subscriptions"] == {}, "without a name nothing is left"


def test_topic_publish_names_target_clusters_of_messages(topic: Callable[..., Done], folder: Path, name: str) -> None:
    assert topic("publish", "0").code == 0
    assert topic("publish", "1", "--no-replication").code == 0
    assert topic("publish", "2", "--replicate-to", "west", "--replicate-to", "south").code == 0
    assert topic("publish", "3", "--replicate-to", "").code == 2
    with Cluster.embedded(folder) as cluster:
        opened = cluster.topic(name)
        assert isinstance(opened, Topic)
        batches = [opened.managed.entries.read(at, bytes_max=1 << 20).result(20.0) for at in range(3)]
    entries = [batch.entries[0] for batch in batches]
    lists = [None if entry.replicate_to is None else decode_names(entry.replicate_to) for entry in entries]
    assert lists == [None, set(), {"south", "west"}]


def test_topic_publish_takes_a_file_and_arguments(topic: Callable[..., Done], tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"a\n\nb\n")
    done = topic("publish", "--file", source, "--producer", "me", "--json")
    assert done.code == 0
    assert {key: done.json[key] for key in ("messages", "first", "last", "bytes")} == {
        "messages": 3, "first": 0, "last": 2, "bytes": 2,
    }  # fmt: skip
    assert topic("publish", "one", "två", "--key", "k", "--property", "a=b", "--property", "c=d=e").code == 0
    actual_rows = rows(topic("consume", "--format", "json"))
    assert [row["value"] for row in actual_rows] == ["a", "", "b", "one", "två"]
    assert [(row["producer"], row["key"]) for row in actual_rows] == [("me", None)] * 3 + [(None, "k")] * 2
    assert actual_rows[4]["properties"] == {"a": "b", "c": "d=e"} and actual_rows[0]["properties"] == {}
    assert [row["offset"] for row in actual_rows] == list(range(5))


def test_topic_consume_prints_where_messages_were_published(
    topic: Callable[..., Done], run: Run, folder: Path, name: str
) -> None:
    """As JSON: null of those that were published here; the same from a server of the topic."""
    assert topic("publish", "own").code == 0
    origin = Origin(bytes(range(16)), "0123456789abcdef")
    with Cluster.embedded(folder) as cluster, TopicServer(cluster) as server:
        opened = cluster.topic(name, create=False)
        assert isinstance(opened, Topic)
        opened.origins.open(origin, 1).result(PATIENCE_S)
        time_us = 1_700_000_000_000_000
        sent = OriginEntry(encode_messages([b"7", b"8"]), 2, 7, time_us, (Gap(0, 7, GapCause.EXPIRED),))
        opened.origins.replicate(origin, 1, [sent]).result(PATIENCE_S)
        served = rows(run("topic", "consume", f"pyreplog://{server.address}", name, "--json"))
    key = f"{origin.key:016x}"
    for consumed in (served, rows(topic("consume", "--json"))):
        places = [
            (row["value"], row["origin_key"], row["origin_offset"], row["origin_publish_time"]) for row in consumed
        ]
        assert places == [("own", None, None, None), ("7", key, 7, time_us), ("8", key, 8, time_us)]


def test_options_may_stand_between_messages(topic: Callable[..., Done]) -> None:
    assert topic("publish", "one", "--key", "k", "two", "--json", "three").json["messages"] == 3
    assert topic("publish", "--", "-5", "--key").code == 0
    assert topic("consume", "--keys").out == "k\tone\nk\ttwo\nk\tthree\n\t-5\n\t--key\n"


def test_publish_of_an_empty_file_publishes_nothing(topic: Callable[..., Done], tmp_path: Path) -> None:
    (empty := tmp_path / "empty").write_bytes(b"")
    assert "0 messages; 0 B" in topic("publish", "--file", empty).out
    assert topic("consume", "--timeout", 0).out == ""


def test_topic_consume_goes_on_with_a_subscription(topic: Callable[..., Done]) -> None:
    topic("publish", *"abcdef")
    assert topic("consume", "--subscription", "work", "--count", 2).out == "a\nb\n"
    assert topic("consume", "--subscription", "work", "--count", 2, "--no-ack").out == "c\nd\n"
    again = topic("consume", "--subscription", "work", "--type", "shared", "--from", "latest")
    assert again.out == "c\nd\ne\nf\n", "where it begins was said when it was made"
    assert topic("consume", "--subscription", "work", "--timeout", 0).out == ""
    assert topic("consume", "--subscription", "new", "--from", "latest", "--timeout", 0).out == ""


def test_all_that_was_there_is_printed_however_late_it_comes(
    topic: Callable[..., Done], run: Run, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the first one here; and what is acknowledged, or somebody else has, is waited for by nobody."""
    monkeypatch.setattr(topic_consume, "_CHECK_S", 0.0)
    topic("publish", *"abcdef")
    assert topic("consume").out == "a\nb\nc\nd\ne\nf\n"
    for _ in range(2):
        assert topic("consume", "--subscription", "work", "--no-ack").out == "a\nb\nc\nd\ne\nf\n"
    with Cluster.embedded(folder) as cluster, TopicServer(cluster) as server:
        where = f"pyreplog://{server.address}", name
        with cluster.topic(name).subscribe("work", type="shared") as other:
            messages = [other.receive() for _ in range(6)]
            other.acknowledge(messages[5])
            other.flush()
            assert run("topic", "consume", *where, "--subscription", "work", "--type", "shared").out == ""
        assert run("topic", "consume", *where, "--subscription", "work").out == "a\nb\nc\nd\ne\n"
        assert run("topic", "consume", *where, "--subscription", "work").out == ""
        assert run("topic", "consume", *where, "--from", "latest").out == ""


def test_topic_consume_follows_a_topic_until_a_time_out_or_a_count(
    topic: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on behind the end of the topic, until nothing comes for so long, or all were there."""
    topic("publish", *"abc")
    receive, came = Consumer._receive_many, 0

    def receives(consumer: Consumer, count: int, timeout: float) -> list[Message]:
        """What is there comes, however slowly; then the time runs out."""
        nonlocal came
        assert timeout == 0.2
        messages: list[Message] = receive(consumer, count, timeout if came == 3 else PATIENCE_S)
        came += len(messages)
        return messages

    with monkeypatch.context() as slow:
        slow.setattr(Consumer, "_receive_many", receives)
        assert topic("consume", "--follow", "--timeout", 0.2).out == "a\nb\nc\n"
    assert topic("consume", "--follow", "--count", 3).out == "a\nb\nc\n"


# ---- subscriptions ----------------------------------------------------------------------------------------------


def test_topic_seek_skip_and_clear_move_subscriptions(topic: Callable[..., Done]) -> None:
    topic("create", "work", "--from", "earliest", group="subscription")
    topic("publish", *"abcdef")

    def left(*waits: object) -> str:
        return topic("consume", "--subscription", "work", "--no-ack", *waits).out.replace("\n", "")

    assert left() == "abcdef"
    assert topic("skip", "work", 2).code == 0 and left() == "cdef"
    assert topic("clear", "work").code == 0 and left("--timeout", 0.2) == ""
    assert topic("seek", "work", 4).out == "work continues at offset 4\n" and left() == "ef"
    assert topic("seek", "work", "earliest", "--json").json == {"offset": 0}
    published = rows(topic("consume", "--json"))[0]["publish_time"]
    assert topic("seek", "work", "2001-01-01T00:00:00").out == "work continues at offset 0\n"
    assert topic("seek", "work", "2999-01-01T00:00:00+01:00").out == "work continues at offset 6\n"
    assert published > 1_000_000_000_000_000 and left("--timeout", 0.2) == ""


def test_subscription_create_and_delete_change_subscriptions(topic: Callable[..., Done]) -> None:
    topic("publish", "before")
    assert topic("create", "a", "--type", "key_shared", "--property", "team=x", group="subscription").code == 0
    topic("create", "b", "--from", "0", group="subscription")
    assert topic("list", group="subscription").out == "a\nb\n"
    assert topic("list", "--json", group="subscription").json == ["a", "b"]
    report = topic("stats", "a", "--json", group="subscription").json
    assert (report["type"], report["properties"], report["backlog_messages"]) == ("key_shared", {"team": "x"}, 0)
    shown = topic("stats", "b", group="subscription").out
    assert "backlog       1 message," in shown and "stalled       no" in shown
    refused = topic("delete", "a", group="subscription")
    assert refused.code == 2 and "--yes" in refused.error
    assert topic("delete", "a", "--yes", group="subscription").code == 0
    assert topic("list", group="subscription").out == "b\n"
    for action in ("stats", "delete"):
        gone = topic(action, "a", *(["--yes"] if action == "delete" else []), group="subscription")
        assert gone.code == 2 and "no subscription a" in gone.error


# ---- topics -----------------------------------------------------------------------------------------------------


def test_topic_stats_prints_ledgers_and_subscriptions(topic: Callable[..., Done], name: str) -> None:
    topic("create", "work", "--from", "earliest", "--type", "shared", group="subscription")
    topic("publish", *"abc")
    report = topic("stats", "--json").json
    assert (report["name"], report["end"]["offset"]) == (name, 3)
    assert report["subscriptions"]["work"]["backlog_messages"] == 3
    shown = topic("stats").out
    assert "kept        3 messages, offsets 0 to 2," in shown and ", of work" in shown
    assert [line.split()[:5] for line in shown.splitlines() if line.startswith("work")] == [
        ["work", "shared", "0", "0", "3"]
    ]
    internal = topic("stats-internal", "--json").json
    assert [each_ledger["messages"] for each_ledger in internal["ledgers"]] == [3] and list(internal["cursors"]) == [
        "work"
    ]
    shown = topic("stats-internal").out
    assert "3 messages, offsets 0 to 2, 1 entry," in shown
    ledger = str(internal["ledgers"][0]["ledger"])
    assert [line.split()[:4] for line in shown.splitlines() if line.split()[:1] == [ledger]] == [
        [ledger, "0", "3", "1"]
    ]


def test_topic_set_changes_and_prints_settings(
    run: Run, topic: Callable[..., Done], folder: Path, tmp_path: Path
) -> None:
    assert topic("set").out.splitlines()[0].split() == ["ensemble", "3"]
    assert topic("set", "retention_bytes=0").out == ""
    assert topic("set", "ttl_ms=60000", "retention-bytes=none", 'compression="none"').out == ""
    report = topic("set", "--json").json
    assert (report["ttl_ms"], report["retention_bytes"], report["compression"]) == (60000, None, "none")
    assert "ttl_ms                  60000\n" in topic("set").out
    assert topic("set", "ttl_ms=none", "--json").json["ttl_ms"] is None
    for wrong in ("unheard_of=1", "ttl_ms=-1", "ttl_ms"):
        done = topic("set", wrong)
        assert (done.code, done.out) == (2, "") and done.error.count("\n") == 1
    config = tmp_path / "config.toml"
    config.write_text("deduplicate = true\nensemble = 2\n")
    assert run("topic", "create", folder, "of-a-file", "--config", config, "--set", "ensemble=1").code == 0
    report = run("topic", "set", folder, "of-a-file", "--json").json
    assert (report["deduplicate"], report["ensemble"]) == (True, 1)


def test_topic_trim_removes_ledgers_that_no_subscription_needs(topic: Callable[..., Done]) -> None:
    """A ledger ends with the command that wrote it."""
    topic("set", "retention_bytes=0")
    topic("create", "work", "--from", "earliest", group="subscription")
    for value in "ab":
        topic("publish", value)
    assert topic("trim").out.endswith(" begins at offset 0\n")
    topic("skip", "work", 1)
    assert topic("trim", "--json").json == {"offset": 1}
    assert topic("stats", "--json").json["start"]["offset"] == 1
    refused = topic("seek", "work", 0)
    assert refused.code == 1 and "pyreplog: " in refused.error


def test_topic_delete_asks_for_yes_and_removes_the_topic(
    run: Run, topic: Callable[..., Done], folder: Path, name: str
) -> None:
    topic("create", "work", group="subscription")
    topic("publish", *"abc")
    assert name in run("topic", "list", folder).out.splitlines()
    refused = topic("delete")
    assert refused.code == 2 and "--yes" in refused.error and refused.error.count("\n") == 1
    assert topic("delete", "--yes").code == 0
    assert name not in run("topic", "--json", "list", folder).json
    for action in ("stats", "stats-internal", "trim", "consume", "publish"):
        done = topic(action, *(["x"] if action == "publish" else []))
        assert (done.code, done.out) == (2, "") and f"topic {name}: " in done.error


# ---- what is refused --------------------------------------------------------------------------------------------


def test_a_directory_is_made_by_create_alone(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new"
    done = run("topic", "list", path)
    assert done.code == 2 and "no cluster" in done.error and not path.exists()
    assert run("topic", "create", path, "first", "--bookies", 1, "--set", "ensemble=1").code == 0
    assert run("topic", "publish", path, "first", "value").code == 0
    assert sorted(each.name for each in path.glob("bookie-*")) == ["bookie-0"], "opening it adds none"
    again = run("topic", "create", path, "first")
    assert again.code == 2 and "already" in again.error


@pytest.mark.parametrize(
    ("arguments", "code", "error_text"),
    [
        (["topic", "publish", "{folder}", "{name}", "x", "--property", "a"], 2, "NAME=VALUE"),
        (["topic", "publish", "{folder}", "{name}", "x", "--batch", "0"], 2, "--batch"),
        (["topic", "publish", "{folder}", "{name}", "x", "--key-separator", ""], 2, "--key-separator"),
        (["topic", "publish", "{folder}", "{name}", "--file", "{folder}/none"], 1, "none"),
        (["topic", "consume", "{folder}", "{name}", "--count", "0"], 2, "--count"),
        (["topic", "consume", "{folder}", "{name}", "--from", "yesterday"], 2, "yesterday"),
        (["topic", "consume", "{folder}", "{name}", "--from", "77"], 1, "77"),
        (["topic", "seek", "{folder}", "{name}", "nobody", "0"], 2, "nobody"),
        (["topic", "skip", "{folder}", "{name}", "nobody", "1"], 2, "nobody"),
        (["topic", "create", "{folder}", "bad\nname"], 2, "control characters"),
        (["topic", "list", "http://example.org"], 2, "http://example.org"),
        (["topic", "list", "sqlite:{folder}/metadata.sqlite", "--tls-key", "{folder}"], 2, "--tls-ca"),
        (["subscription", "create", "{folder}", "{name}", "pyreplog.mine"], 2, "pyreplog.mine"),
    ],
)
def test_topic_and_subscription_commands_refuse_invalid_arguments(
    arguments: list[str], code: int, error_text: str, run: Run, folder: Path, topic: Callable[..., Done], name: str
) -> None:
    done = run(*(argument.format(folder=folder, name=name) for argument in arguments))
    assert (done.code, done.out) == (code, "")
    assert error_text in done.error and done.error.startswith("pyreplog: ") and done.error.count("\n") == 1


def test_locked_directory_error_names_the_process(run: Run, topic: Callable[..., Done], folder: Path) -> None:
    with Cluster.embedded(folder):
        done = topic("stats")
    assert done.code == 3 and "process" in done.error


@pytest.mark.parametrize("group", ["topic", "subscription"])
def test_missing_action_exits_with_usage(group: str) -> None:
    with pytest.raises(SystemExit):
        main([group])


# ---- dead letters -----------------------------------------------------------------------------------------------


def test_topic_redrive_publishes_dead_letters_again(
    topic: Callable[..., Done], run: Run, folder: Path, name: str
) -> None:
    dead = f"{name}-dead"
    assert run("topic", "create", *KEPT, folder, dead).code == 0
    assert run("subscription", "create", folder, dead, "people", "--from", "earliest").code == 0

    def redrive(*arguments: object) -> Done:
        return run("topic", "redrive", folder, dead, "people", *arguments)

    for value, cause in (("a", "nack"), ("b", "ack_timeout"), ("c", "nack")):
        said = ("--property", f"pyreplog.topic={name}", "--property", f"pyreplog.cause={cause}")
        assert run("topic", "publish", *said, folder, dead, value).code == 0
    assert run("topic", "publish", folder, dead, "whence").code == 0
    done = redrive("--dry-run")
    assert done.out.splitlines() == [
        f"3 dead letters would be sent to {name}",
        "1 dead letter left: their topic is unknown or does not exist; use --to",
    ]
    assert topic("consume").out == ""
    done = redrive("--property", "pyreplog.cause=ack_timeout", "--json")
    assert done.json == {
        "sent": 1, "repeated": 0, "skipped": 3, "stranded": 0, "topics": {name: 1}, "dry_run": False,
    }  # fmt: skip
    assert redrive("--limit", 1).out == f"1 dead letter sent to {name}\n"
    assert redrive("--to", name).out == f"2 dead letters sent to {name}\n"
    assert redrive().out == "0 dead letters sent\n"
    assert topic("consume").out == "b\na\nc\nwhence\n"
    assert redrive("--to", "nowhere").code != 0 and "nowhere" in redrive("--to", "nowhere").error
