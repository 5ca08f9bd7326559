"""Kafka's own command-line tools against three brokers that are processes, of which one is killed: `make foreign`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.foreign.broker_process import BrokerProcesses
from tests.foreign.maven import JAVA, fetch_jars
from tests.waiting import until

_TOOLS = "org.apache.kafka.tools"
_TOOL_S = 240
_KILL_AFTER = 3_000
"""Messages that are acknowledged before a broker is killed."""
_COPIES_BEFORE = 30
"""Transactions that are committed before that."""


class ToolError(Exception):
    """A tool failed; the text is the end of what it printed."""


class Tools:
    """Runs Kafka's tools.

    Args:
        folder: for their output.
        brokers: which they talk to.
    """

    def __init__(self, folder: Path, brokers: BrokerProcesses) -> None:
        self.folder, self.brokers = folder, brokers
        self._jars = fetch_jars(Path(__file__).parent / "tools" / "pom.xml")
        self._count = 0
        self._started: list[subprocess.Popen[str]] = []

    def start(self, tool: str, *words: object) -> tuple[subprocess.Popen[str], Path]:
        """Start a tool; return its process and the file of what it prints."""
        self._count += 1
        path = self.folder / f"tool-{self._count}"
        with path.open("w") as output:
            process = subprocess.Popen(
                ["java", *JAVA, "-cp", f"{self._jars}/*", f"{_TOOLS}.{tool}", *map(str, words)],
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        self._started.append(process)
        return process, path

    def end_all(self) -> None:
        """End the tools that still run: a scenario that failed leaves some behind."""
        for process in self._started:
            process.kill()
            process.wait()
        self._started.clear()

    def finish(self, started: tuple[subprocess.Popen[str], Path]) -> str:
        """Wait for a tool; return what it printed. Raises ToolError: it failed, or is ended because it hangs."""
        process, path = started
        try:
            process.wait(_TOOL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ToolError(f"still running after {_TOOL_S} s: {path.read_text()[-500:]}") from None
        if process.returncode:
            raise ToolError(path.read_text()[-1500:])
        return path.read_text()

    def run(self, tool: str, *words: object, server: str = "--bootstrap-server") -> str:
        """Run a tool with the addresses of the brokers; return what it prints."""
        return self.finish(self.start(tool, server, self.brokers.addresses, *words))

    def create(self, topic: str, partitions: int = 3) -> None:
        """Create a topic with three replicas, of which two must have what is acknowledged."""
        self.run(
            "TopicCommand", "--create", "--topic", topic, "--partitions", partitions, "--replication-factor", 3,
            "--config", "min.insync.replicas=2",
        )  # fmt: skip

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the node id of a partition's leader."""
        described = self.run("TopicCommand", "--describe", "--topic", topic)
        (leader,) = re.findall(rf"Partition: {partition}\s+Leader: (\d+)", described)
        return int(leader)

    def count(self, topic: str) -> int:
        """Return the sum of the end offsets of a topic's partitions."""
        lines = self.run("GetOffsetShell", "--topic", topic).split()
        return sum(int(line.rpartition(":")[2]) for line in lines if line.startswith(f"{topic}:"))

    def kill_while(
        self, topic: str, started: tuple[subprocess.Popen[str], Path], acknowledged: Callable[[str], bool]
    ) -> str:
        """Kill a leader when what a tool printed says so, and start it again; return all that the tool printed."""
        process, path = started
        leader = self.leader(topic)
        until(lambda: acknowledged(path.read_text()) or process.poll() is not None, _TOOL_S, pause_s=0.05)
        self.brokers.kill(leader)
        time.sleep(1.0)  # others lead meanwhile
        self.brokers.start(leader)
        return self.finish(started)


def events(output: str, name: str) -> list[dict[str, Any]]:
    """The lines of JSON of one kind that Kafka's verifiable clients print."""
    lines = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    return [line for line in lines if line["name"] == name]


def check(condition: bool, text: str) -> None:
    if not condition:
        raise ToolError(text)


# ---- what is run ---------------------------------------------------------------------------------------------------


def verifiable(tools: Tools) -> str:
    """Every acknowledged message is consumed at its offset, and the group has no gap."""
    count = 12_000
    tools.create("verifiable")
    server = ("--bootstrap-server", tools.brokers.addresses)
    consuming = tools.start(
        "VerifiableConsumer", *server, "--topic", "verifiable", "--group-id", "verifiers", "--verbose", "--max-messages", count,
    )  # fmt: skip
    settings = tools.folder / "producer.properties"
    settings.write_text("retries=2147483647\nenable.idempotence=true\n")  # this tool's own default is not to retry
    words = ("--topic", "verifiable", "--max-messages", count, "--throughput", 1500, "--command-config", settings)
    producing = tools.start("VerifiableProducer", *server, *words)
    output = tools.kill_while("verifiable", producing, lambda text: text.count("producer_send_success") >= _KILL_AFTER)
    check(not events(output, "producer_send_error"), f"send errors: {events(output, 'producer_send_error')[:3]}")
    sent = {(event["partition"], event["offset"]): event["value"] for event in events(output, "producer_send_success")}
    check(len(sent) == count, f"{len(sent)} of {count} were acknowledged")
    check(tools.count("verifiable") == count, f"{tools.count('verifiable')} records of {count} messages")
    received: dict[tuple[int, int], str] = {}
    for event in events(tools.finish(consuming), "record_data"):
        received[event["partition"], event["offset"]] = event["value"]
    check(received == sent, f"{len(received.items() ^ sent.items())} records differ")
    return f"{count:,} messages, each acknowledged once and consumed at its offset"


def producer_performance(tools: Tools) -> str:
    """A producer with its default settings (idempotent, acks=all) stores each record once."""
    count = 200_000
    tools.create("performance")
    producing = tools.start(
        "ProducerPerformance", "--topic", "performance", "--num-records", count, "--record-size", 100,
        "--throughput", 20_000, "--producer-props", f"bootstrap.servers={tools.brokers.addresses}",
    )  # fmt: skip
    output = tools.kill_while("performance", producing, lambda text: "records sent" in text)
    check("Exception" not in output, output[-1500:])
    check(f"{count} records sent" in output, output[-500:])
    found = tools.count("performance")
    check(found == count, f"{found} records of {count}")
    return f"{count:,} records of 100 B at 20,000/s, each stored once"


def consumer_performance(tools: Tools) -> str:
    """It reads what the producer wrote."""
    tools.create("consumed")
    count = 50_000
    tools.run(
        "ProducerPerformance", "--topic", "consumed", "--num-records", count, "--record-size", 100, "--throughput", -1,
        server="--bootstrap-server",
    )  # fmt: skip
    output = tools.run("ConsumerPerformance", "--topic", "consumed", "--messages", count, "--hide-header")
    found = int(output.split(",")[4])
    check(found == count, output)
    return f"{count:,} records"


def end_to_end(tools: Tools) -> str:
    """Each message comes back before the next one is sent."""
    tools.create("latency", 1)
    output = tools.run(
        "EndToEndLatency", "--topic", "latency", "--num-records", 2000, "--producer-acks", "all", "--record-size", 100
    )
    (latency,) = re.findall(r"Percentiles: 50th = (\d+), 99th = (\d+)", output)
    return f"2,000 messages; median {latency[0]} ms, p99 {latency[1]} ms"


def topics(tools: Tools) -> str:
    """Create, describe, alter, delete."""
    tools.create("commanded", 2)
    tools.run("TopicCommand", "--alter", "--topic", "commanded", "--partitions", 4)
    described = until(
        lambda: next(
            (
                text
                for text in [tools.run("TopicCommand", "--describe", "--topic", "commanded")]
                if "Partition: 3" in text
            ),
            None,
        )
    )
    check("min.insync.replicas=2" in described, described)
    tools.run("TopicCommand", "--delete", "--topic", "commanded")
    until(lambda: "commanded" not in tools.run("TopicCommand", "--list").split(), pause_s=0.5)
    return "create, describe, alter, delete, list"


def groups(tools: Tools) -> str:
    """Describe, reset and delete a group that VerifiableConsumer left behind."""
    tools.create("grouped", 1)
    tools.run("VerifiableProducer", "--topic", "grouped", "--max-messages", 500)
    tools.run("VerifiableConsumer", "--topic", "grouped", "--group-id", "commanded", "--max-messages", 500)
    command = "consumer.group.ConsumerGroupCommand"
    check("commanded" in tools.run(command, "--list").split(), "the group is not listed")
    described = tools.run(command, "--describe", "--group", "commanded")
    check(bool(re.search(r"grouped\s+0\s+500\s+500\s+0", described)), described)
    reset = ("--group", "commanded", "--topic", "grouped", "--reset-offsets", "--execute")
    tools.run(command, *reset, "--to-offset", 100)
    described = tools.run(command, "--describe", "--group", "commanded")
    check(bool(re.search(r"grouped\s+0\s+100\s+500\s+400", described)), described)
    check("commanded" in tools.run("GroupsCommand", "--list"), "GroupsCommand does not list it")
    tools.run(command, "--delete", "--group", "commanded")
    return "list, describe, reset, delete"


def offsets(tools: Tools) -> str:
    """Delete records, and ask for offsets."""
    tools.create("trimmed", 1)
    tools.run("VerifiableProducer", "--topic", "trimmed", "--max-messages", 100)
    path = tools.folder / "delete.json"
    path.write_text(json.dumps({"partitions": [{"topic": "trimmed", "partition": 0, "offset": 40}], "version": 1}))
    deleted = tools.run("DeleteRecordsCommand", "--offset-json-file", path)
    check("low_watermark: 40" in deleted, deleted)
    check("trimmed:0:40" in tools.run("GetOffsetShell", "--topic", "trimmed", "--time", -2), "the start did not move")
    return "delete to an offset, earliest and latest offsets"


def election(tools: Tools) -> str:
    """Preferred leaders are elected."""
    tools.create("elected", 3)
    output = tools.run("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    check("Error" not in output, output)
    return "preferred leaders of all partitions"


def api_versions(tools: Tools) -> str:
    """Each broker says what it serves."""
    output = tools.run("BrokerApiVersionsCommand")
    check(output.count("Produce(0)") == 3, output[-1500:])
    return "three brokers"


def transactional_copy(tools: Tools) -> str:
    """Copies a topic in transactions, with the offsets, while a leader is killed: each message is committed once."""
    count = 6_000
    tools.create("source", 1)
    tools.create("copy", 1)
    tools.run("VerifiableProducer", "--topic", "source", "--max-messages", count)
    copying = tools.start(
        "TransactionalMessageCopier", "--broker-list", tools.brokers.addresses, "--consumer-group", "copiers",
        "--input-topic", "source", "--output-topic", "copy", "--input-partition", 0, "--transactional-id", "copier",
        "--transaction-size", 20, "--max-messages", count,
    )  # fmt: skip
    tools.kill_while("copy", copying, lambda text: text.count("ProcessLoop") >= _COPIES_BEFORE)
    printed = tools.run(
        "consumer.ConsoleConsumer", "--topic", "copy", "--from-beginning", "--isolation-level", "read_committed",
        "--max-messages", count, "--timeout-ms", 30_000,
    )  # fmt: skip
    values = sorted(
        int(line) for line in printed.splitlines() if line.isdigit()
    )  # it says in the end how many they are
    check(values == list(range(count)), f"{len(values)} messages, {len({*values})} of them distinct, of {count}")
    return f"{count:,} messages in {count // 20} transactions, each committed once"


def transactions(tools: Tools) -> str:
    """Open transactions are listed."""
    return tools.run("TransactionsCommand", "list").strip()[:80] or "none"


def log_dirs(tools: Tools) -> str:
    """Sizes of logs."""
    return tools.run("LogDirsCommand", "--describe").strip()[:80]


def acls(tools: Tools) -> str:
    """The broker says that it has none."""
    try:
        output = tools.run("AclCommand", "--list")
    except ToolError as error:
        output = str(error)
    check("SecurityDisabledException" in output, output[-1500:])
    return "it is told that there are none"


def reassignment(tools: Tools) -> str:
    """Another order of the replicas makes another leader."""
    tools.create("moved", 1)
    leader = tools.leader("moved")
    replicas = sorted(range(1, 4), key=lambda number: number == leader)
    plan = tools.folder / "moved.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": replicas}]})
    )
    tools.run("reassign.ReassignPartitionsCommand", "--execute", "--reassignment-json-file", plan)

    def is_complete() -> bool:
        words = "--verify", "--reassignment-json-file", plan
        return "is completed" in tools.run("reassign.ReassignPartitionsCommand", *words)

    until(is_complete, _TOOL_S, pause_s=0.5)
    return "replicas have another order"


class Scenario(NamedTuple):
    """A tool. why_not: why it need not pass; "": it must."""

    run: Callable[[Tools], str]
    names: str
    killed: bool = False
    why_not: str = ""


SCENARIOS = (
    Scenario(verifiable, "kafka-verifiable-producer, kafka-verifiable-consumer", killed=True),
    Scenario(producer_performance, "kafka-producer-perf-test, kafka-get-offsets", killed=True),
    Scenario(consumer_performance, "kafka-consumer-perf-test"),
    Scenario(end_to_end, "kafka-e2e-latency"),
    Scenario(topics, "kafka-topics"),
    Scenario(groups, "kafka-consumer-groups, kafka-groups"),
    Scenario(offsets, "kafka-delete-records"),
    Scenario(election, "kafka-leader-election"),
    Scenario(api_versions, "kafka-broker-api-versions"),
    Scenario(transactional_copy, "TransactionalMessageCopier", killed=True),
    Scenario(transactions, "kafka-transactions"),
    Scenario(log_dirs, "kafka-log-dirs"),
    Scenario(acls, "kafka-acls"),
    Scenario(reassignment, "kafka-reassign-partitions"),
)


def main() -> None:
    """Run the scenarios; print a table. Exits with 1 if one failed that must pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=__doc__)
    parser.add_argument(
        "--only", nargs="*", choices=[scenario.run.__name__ for scenario in SCENARIOS], help="run these alone"
    )
    only = parser.parse_args().only
    failed = False
    print("| tool | kill -9 | outcome |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder, BrokerProcesses(Path(folder), 3) as brokers:
        tools = Tools(Path(folder), brokers)
        for scenario in SCENARIOS:
            if only and scenario.run.__name__ not in only:
                continue
            killed = "a leader" if scenario.killed else ""
            try:
                outcome = "passes: " + scenario.run(tools)
            except ToolError as error:
                failed = failed or not scenario.why_not
                reason = scenario.why_not or " ".join(str(error).split())
                outcome = f"fails: {reason}"
                print(error, file=sys.stderr)
            finally:
                tools.end_all()
            print(f"| {scenario.names} | {killed} | {outcome} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
