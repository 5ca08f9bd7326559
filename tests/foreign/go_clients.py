"""`python -m tests.foreign.go_clients`: the tests of Go's Kafka clients, against one broker. It needs Go.

Their modules are fetched and copied, and run with the address of a broker of this checkout. The tests that the broker
cannot pass are skipped by name; the table says why. sarama's own tests want brokers in containers, so its tests are
in the folder `sarama`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pyreplog.kafka import EmbeddedKafka

_SUITE_S = 1_800
_HERE = Path(__file__).parent


class Suite(NamedTuple):
    """Tests of a Go module.

    Attributes:
        module: its path and version.
        package: with the tests.
        skipped: why not, by test.
        environment: of the tests; `{address}` is that of the broker.
        names_address: whether the tests name the address of a broker, which is to be replaced.
        folder: of the tests, beside this module; "": they are the module's own.
    """

    module: str
    package: str
    skipped: Mapping[str, str]
    environment: Mapping[str, str]
    names_address: bool = False
    folder: str = ""


SUITES = {
    "franz-go": Suite(
        "github.com/twmb/franz-go@v1.22.3", "pkg/kgo",
        {},
        {"KGO_SEEDS": "{address}", "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "2000"},
    ),
    "kafka-go": Suite(
        "github.com/segmentio/kafka-go@v0.4.51", ".",
        {
            "TestAlterUserScramCredentials": "users are in a file of the broker",
            "TestDescribeUserScramCredentials": "users are in a file of the broker",
            "TestClientCreateACLs": "there are no ACLs",
            "TestClientDescribeACLs": "there are no ACLs",
            "TestClientDeleteACLs": "there are no ACLs",
            "TestUnsupportedSASLMechanism": "wants a second listener, with SASL",
            "TestWriter/writing_a_message_with_SASL_Plain_authentication": "likewise",
            "TestReaderReadCompactedMessage": "wants segments of 200 bytes; Kafka 4 wants 1 MiB at least (KIP-1030)",
            "TestReaderConsumerGroup/consumer_group_commits_on_close": "fails by itself: it calls a function that is nil",
            "TestReaderConsumerGroup/verify_offset_committed": "likewise",
            "TestReaderConsumerGroup/verify_offset_committed_when_using_interval_committer": "likewise",
            "TestReaderConsumerGroup/consumer_group_rebalance": (
                "two readers share 24 messages of three partitions, and each wants 12: one has 8 of them, unless it was"
                " alone in the group for a while"
            ),
            "TestDialerResolver/resolve_domain_to_ip": "wants port 9092",
            "TestDialerResolver/resolve_domain_to_ip_and_port": "likewise",
        },
        {"KAFKA_VERSION": "4.0.0"},
        names_address=True,
    ),
    "sarama": Suite(
        "github.com/IBM/sarama@v1.61.1", ".",
        {},
        {"KAFKA_SEEDS": "{address}"},
        folder="sarama",
    ),
}  # fmt: skip


def fetch(suite: Suite, folder: Path, address: str) -> Path:
    """Copy the tests of a suite, with the address of the broker in place of one that they name."""
    copy = folder / "module"
    if suite.folder:
        shutil.copytree(_HERE / suite.folder, copy)
    else:
        command = ["go", "mod", "download", "-json", suite.module]
        answer = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        shutil.copytree(json.loads(answer)["Dir"], copy, copy_function=shutil.copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    for path in copy.rglob("*_test.go") if suite.names_address else ():
        if path.name != "address_test.go":  # of which the text of addresses is the subject
            text = path.read_text().replace("localhost:9092", address).replace('TCP("localhost")', f'TCP("{address}")')
            port = address.partition(":")[2]
            path.write_text(text.replace('"localhost"', '"127.0.0.1"').replace("9092", port))
    subprocess.run(["go", "mod", "tidy"], cwd=copy, check=True, capture_output=True)
    return copy


def run(suite: Suite, folder: Path, only: str = "") -> tuple[Counter[str], list[str]]:
    """Run the tests of a suite, and write to stderr what those say that fail.

    Args:
        suite: the tests.
        folder: for the copy and the broker.
        only: which of them, as `go test -run` wants it.

    Returns:
        How many had which outcome, and the names of those that failed.
    """
    with EmbeddedKafka(folder / "kafka") as kafka:
        copy = fetch(suite, folder, kafka.bootstrap_servers)
        environment = {name: text.format(address=kafka.bootstrap_servers) for name, text in suite.environment.items()}
        command = ["go", "test", "-json", "-vet=off", f"-timeout={_SUITE_S}s", f"-run={only}"]
        if suite.skipped:
            command.append(
                f"-skip={'|'.join('/'.join(f'^{part}$' for part in test.split('/')) for test in suite.skipped)}"
            )
        done = subprocess.run(
            [*command, "."],
            cwd=copy / suite.package,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
    outcomes, outputs = dict[str, str](), defaultdict[str, str](str)
    for line in done.stdout.splitlines():
        event = json.loads(line)
        test = event.get("Test", "")
        if event["Action"] in ("pass", "fail", "skip"):
            outcomes[test] = event["Action"]
        else:  # what the compiler says has no test
            outputs[test] += event.get("Output", "")
    for test, outcome in outcomes.items():
        if outcome == "fail":
            sys.stderr.write(outputs[test])
    package = outcomes.pop("", "fail")
    failures = sorted(name for name, outcome in outcomes.items() if outcome == "fail")
    if package == "fail" and not failures:
        sys.stderr.write("".join(outputs.values()))
        failures.append("the package")
    return Counter(outcomes.values()), failures


def main() -> None:
    """Run the suites; print a table. Exits with 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign.go_clients", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--run", default="", metavar="REGEX", help="of the tests (default: all)")
    arguments = parser.parse_args()
    names = arguments.suites or list(SUITES)
    if shutil.which("go") is None:
        print("Go is not installed: the tests of its clients are left out")
        return
    failed = False
    print("| suite | passed | failed | skipped by itself | not run, and why |\n|---|---|---|---|---|", flush=True)
    for name in names:
        suite = SUITES[name]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            (Path(folder) / "go.mod").write_text("module fetch\n\ngo 1.21\n")
            outcomes, failures = run(suite, Path(folder), arguments.run)
        failed = failed or bool(failures) or not outcomes["pass"]
        why = "; ".join(f"{test}: {reason}" for test, reason in suite.skipped.items())
        print(
            f"| {suite.module} | {outcomes['pass']} | {', '.join(failures) or '0'} | {outcomes['skip']} | {why} |",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
