"""The programs of docs/kafka.md, and the README's Kafka, run as they are printed; so do the guide's commands."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import pyreplog.kafka
from pyreplog.cli.app import main
from tests.guides import ROOT, blocks, fences, placed, run, run_as_promised
from tests.kafka.kafka_brokers import KafkaBrokers
from tests.ledger.processes import Process, ProcessGroup
from tests.net.test_tls import Authority
from tests.waiting import until

GUIDE = ROOT / "docs" / "kafka.md"
IN_PROCESS, LISTENER, PRODUCTION, TOPICS_ON_LEDGERS, USERS, WATCH = blocks(GUIDE)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_kafka_program_of_the_readme_runs() -> None:
    _, block = blocks(ROOT / "README.md")
    assert len(block.splitlines()) <= 13 and block == IN_PROCESS
    run_as_promised(block, {})


def test_a_listener_of_a_broker() -> None:
    (printed,) = run(placed(LISTENER, {"port=9092": "port=0"}), {})
    assert re.fullmatch(r"127\.0\.0\.1:\d+", printed)


def test_the_program_of_a_listener_with_users_runs(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "all")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("1"))
    with KafkaBrokers(tmp_path) as brokers:
        namespace: dict[str, Any] = {
            "pyreplog": pyreplog,
            "context": context,
            "broker": brokers.start("1").brokers["1"],
        }
        run(USERS, namespace)
        namespace["server"].close()


def test_the_program_of_topics_on_ledgers_runs() -> None:
    run_as_promised(TOPICS_ON_LEDGERS, {})


def test_the_program_of_groups_and_their_lag_runs() -> None:
    assert run(WATCH, {}) == [], "there is no group yet"


# ---- a small Kafka in production -----------------------------------------------------------------------------

MACHINES = "abc"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path, f"sqlite:{tmp_path}/metadata.sqlite") as processes:
        yield processes


def placed_command(processes: ProcessGroup, command: str) -> list[str]:
    """A command of the guide with paths and addresses of this test."""
    places = {
        "zk://zk1:2181/kafka": processes.url,
        "/etc/pyreplog": str(processes.folder),
        "/data": str(processes.folder / "data"),
    }
    return re.sub(r"10\.0\.0\.\d+:\d+", "127.0.0.1:0", placed(command, places)).split()


def start_as_printed(processes: ProcessGroup) -> dict[str, Process]:
    """Start the brokers of the guide, with its settings; by the names of their machines."""
    (config,) = (text for language, text in fences(GUIDE) if language == "toml")
    (processes.folder / "broker.toml").write_text(f"segment_bytes = 1048576\n{config}offsets_partitions = 4\n")
    (processes.folder / "secret").write_text("what all brokers know\n")
    (processes.folder / "users").write_text("billing:a long secret\n")
    commands = dict(re.findall(r"^([a-c])\$ (pyreplog broker .*)$", GUIDE.read_text(), re.MULTILINE))
    assert [*commands] == [*MACHINES]
    return {
        machine: processes.start(*placed_command(processes, command), "--json") for machine, command in commands.items()
    }


def test_three_brokers_of_which_one_is_killed(processes: ProcessGroup, capsys: pytest.CaptureFixture[str]) -> None:
    brokers = start_as_printed(processes)
    bootstrap = ",".join(brokers[machine].wait_for("kafka") for machine in MACHINES)
    assert [brokers[machine].wait_for("broker") for machine in MACHINES] == ["1@1", "2@1", "3@1"]
    program = re.sub(r'"10\.0\.0\.11:9092,[^"]*"', f'"{bootstrap}"', PRODUCTION)
    namespace: dict[str, Any] = {}
    run_as_promised(program, namespace)

    brokers["b"].kill()
    producer, errors = namespace["producer"], []
    for number in range(1000, 1500):
        producer.produce("orders", b"order %d" % number, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60.0) == 0 and errors == [None] * 500

    described = re.search(r"^\$ pyreplog partitions (.* describe orders)$", GUIDE.read_text(), re.MULTILINE)
    assert described is not None

    def out_of_sync() -> list[list[str]]:
        capsys.readouterr()
        assert (
            main(["partitions", "--json", "--metadata", processes.url, *placed_command(processes, described[1])]) == 0
        )
        return [row["out_of_sync"] for row in json.loads(capsys.readouterr().out)]

    until(lambda: out_of_sync() == [["2"]] * 6, pause_s=0.2)
    consumer = Consumer({**namespace["settings"], "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    values: list[bytes] = []

    def has_all() -> bool:
        values.extend(message.value() for message in consumer.consume(500, 0.5) if message.error() is None)
        return len(values) >= 1500

    until(has_all)
    consumer.close()
    assert sorted(values) == sorted(b"order %d" % number for number in range(1500))
