"""All alarm rules of docs/operations.md, and the metrics that it names, beside what servers export."""

from __future__ import annotations

import itertools
import re
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pyreplog.cli.app import main
from tests.guides import ROOT, fences
from tests.ledger.processes import Process, ProcessGroup
from tests.waiting import until

GUIDE = ROOT / "docs" / "operations.md"
METRIC = re.compile(r"\bpyreplog_\w+")
LABELS = re.compile(r"(\w+)\{([^}]*)\}|(?:by|on|without) \(([^)]*)\)")
NOT_VALUES = re.compile(r"\[[^]]*\]|\{[^}]*\}|\bby \([^)]*\)")
"""Parts of an expression that choose series and times."""

WITHOUT_SERIES = {"pyreplog_autorecovery_alarms"}
"""Metrics that have no series while all is well; tests/autorecovery/test_alarm_rules.py has one."""


class Rule(NamedTuple):
    """An alarm rule. expression: in PromQL."""

    alert: str
    expression: str

    @property
    def metrics(self) -> list[str]:
        return sorted({*METRIC.findall(self.expression)})

    @property
    def labels(self) -> set[str]:
        names = (
            name
            for _, matchers, group in LABELS.findall(self.expression)
            for name in re.split(r"[,=]", matchers + group)
        )
        return {name.strip() for name in names if re.fullmatch(r"\s*[a-z]\w*\s*", name)}

    def fires(self, values: dict[str, float]) -> bool:
        """Return whether the rule fires when each of its metrics has one series with this value or increase."""
        functions = dict.fromkeys(("max", "sum", "increase", "max_over_time", "vector"), lambda value: value)
        return bool(eval(NOT_VALUES.sub("", self.expression), {"__builtins__": {}}, {**functions, **values}))


class Exported(NamedTuple):
    """What the server kinds export: the kind of each metric, the labels of its series, and the highest value."""

    kinds: dict[str, str]
    labels: dict[str, set[str]]
    values: dict[str, float]


def documented_rules() -> list[Rule]:
    groups = [
        group for language, text in fences(GUIDE) if language == "yaml" for group in yaml.safe_load(text)["groups"]
    ]
    return [Rule(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


RULES = documented_rules()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """Start a server of each kind, each with something to report, and scrape all of them."""
    folder = tmp_path_factory.mktemp("servers")
    url = f"sqlite:{folder}/metadata.sqlite"
    with ProcessGroup(folder, url) as processes:
        servers = start_servers(processes)
        address = servers["serve"].wait_for("address")
        for command in (
            ("topic", "create", f"pyreplog://{address}", "orders", "--json"),
            ("subscription", "create", f"pyreplog://{address}", "orders", "billing", "--json"),
        ):
            assert main(command) == 0
        follow_with = ("--name", "b", "--master", servers["ha master"].wait_for("address"))
        processes.start("pyreplog", "ha", "--json", "replica", str(folder / "b"), *follow_with).wait_for("address")
        addresses = [server.wait_for("metrics") for server in servers.values()]
        until(lambda: settled(merged(addresses)))
        yield merged(addresses)


def start_servers(processes: ProcessGroup) -> dict[str, Process]:
    folder, metadata = processes.folder, ("--metadata", processes.url)
    commands: dict[str, tuple[str, ...]] = {
        "bookie": ("bookie", str(folder / "b1"), *metadata, "--segment-bytes", str(4 << 20), "--autorecovery"),
        "autorecovery": ("autorecovery", "run", processes.url),
        "serve": ("serve", str(folder / "topics"), "--bookies", "1", "--listen", "127.0.0.1:0"),
        "broker": ("broker", str(folder / "1"), *metadata, "--listen", "127.0.0.1:0", "--kafka", "127.0.0.1:0"),
        "kafka": ("kafka", str(folder / "kafka"), "--listen", "127.0.0.1:0"),
        "ha master": ("ha", "master", str(folder / "a"), "--name", "a", "--members", "a,b", "--sync-replicas", "1"),
    }
    return {
        kind: processes.start("pyreplog", *command, "--metrics", "0", "--json") for kind, command in commands.items()
    }


def settled(now: Exported) -> bool:
    """Return whether an auditor runs, the replica follows, and the topic and its subscription are there."""
    return (
        now.values["pyreplog_autorecovery_is_auditor"] == 1
        and now.values.get("pyreplog_ha_replica_connected") == 1
        and "pyreplog_subscription_stalled" in now.values
    )


def merged(addresses: list[str]) -> Exported:
    result = Exported({}, {}, {})
    for address in addresses:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as reply:
            text = reply.read().decode()
        for family in text_string_to_metric_families(text):
            result.kinds[family.name + ("_total" if family.type == "counter" else "")] = family.type
            for sample in family.samples:
                result.labels.setdefault(sample.name, set()).update(sample.labels)
                result.values[sample.name] = max(sample.value, result.values.get(sample.name, sample.value))
    return result


def test_all_groups_of_rules_are_read() -> None:
    text = GUIDE.read_text()
    assert len(RULES) == text.count("- alert: ") > 20
    assert {"SubscriptionStalled", "PartitionsUnderReplicated", "EntriesAreLost"} <= {rule.alert for rule in RULES}
    assert len({rule.alert for rule in RULES}) == len(RULES)


def test_servers_export_every_metric_that_operations_names(exported: Exported) -> None:
    named = {*METRIC.findall(GUIDE.read_text())}
    assert len(named) > 100
    assert named <= exported.kinds.keys(), sorted(named - exported.kinds.keys())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.alert)
def test_servers_export_the_metrics_and_labels_of_a_rule(rule: Rule, exported: Exported) -> None:
    assert rule.metrics
    for metric in rule.metrics:
        assert metric in exported.kinds, "no server exports it"
        if metric not in WITHOUT_SERIES:
            assert rule.labels <= exported.labels[metric]
    for metric in re.findall(r"(?:increase|rate)\((\w+)", rule.expression):
        assert exported.kinds[metric] == "counter", "only counters increase"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.alert)
def test_a_rule_fires_for_a_planted_value_and_not_for_healthy_servers(rule: Rule, exported: Exported) -> None:
    healthy = {metric: exported.values.get(metric, 0.0) for metric in rule.metrics}
    assert exported.values.keys() >= healthy.keys() - WITHOUT_SERIES
    assert not rule.fires(healthy)
    planted = itertools.product((0.0, 1e9), repeat=len(rule.metrics))
    assert any(rule.fires(dict(zip(rule.metrics, values, strict=True))) for values in planted)
