"""The alarm rules of docs/operations.md: they parse, and what they look at is exported and follows what happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.hold import begin_hold
from pyreplog.autorecovery.lost_entries import LostRange, note_lost
from pyreplog.autorecovery.metrics import auto_recovery_metrics
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.clock import ManualClock
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import metadata_key
from pyreplog.metrics import Metric
from tests.waiting import until

ROOT = Path(__file__).parents[2]
DURATION = re.compile(r"\d+[smhd]")
METRIC = re.compile(r"\bpyreplog_\w+")
CODE = re.compile(r'code="([\w-]+)"')


def rules() -> list[dict[str, Any]]:
    """Return the rules as Prometheus would read them."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("### Alarm rules\n")[2]
    (group,) = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])["groups"]
    assert group.keys() == {"name", "rules"}
    return list(group["rules"])


class RecoveryBench:
    """An embedded cluster, and auto-recovery that takes a step when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        self.cluster = LedgerCluster.embedded(folder, bookies=4, segment_bytes=1 << 20)
        self.recovery = AutoRecovery(self.cluster, self.clock)

    def metrics(self) -> dict[str, Metric]:
        """Return what is exported, by the name that a rule has for it."""
        metrics = [*auto_recovery_metrics(self.recovery), *self.cluster.metrics()]
        return {f"{metric.name}{'_total' if metric.kind == 'counter' else ''}": metric for metric in metrics}

    def value(self, name: str) -> float:
        (sample,) = self.metrics()[f"pyreplog_autorecovery_{name}"].samples
        assert isinstance(sample[1], float)
        return sample[1]

    def step(self) -> None:
        self.recovery.round()
        until(lambda: not self.recovery.is_copying)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RecoveryBench]:
    opened = RecoveryBench(tmp_path)
    yield opened
    opened.recovery.close()
    opened.cluster.close()


def test_rules_are_what_prometheus_takes() -> None:
    actual_rules = rules()
    assert len(actual_rules) > 10 and len({rule["alert"] for rule in actual_rules}) == len(actual_rules)
    for rule in actual_rules:
        assert rule.keys() <= {"alert", "expr", "for", "annotations"} and rule["annotations"].keys() == {"summary"}
        assert re.fullmatch(r"[A-Z]\w+", rule["alert"]) and rule["annotations"]["summary"]
        assert DURATION.fullmatch(rule.get("for", "1m")), rule["alert"]
        for left, right in ("()", "[]", "{}"):
            assert rule["expr"].count(left) == rule["expr"].count(right), rule["alert"]
        assert all(DURATION.fullmatch(span) for span in re.findall(r"\[(.*?)\]", rule["expr"]))
        assert METRIC.search(rule["expr"]) and re.search(r"(?<![=!])[<>]|== 0", rule["expr"]), rule["alert"]


def test_every_metric_in_a_rule_is_exported(bench: RecoveryBench) -> None:
    exported = bench.metrics()
    named = {name for rule in rules() for name in METRIC.findall(rule["expr"])}
    assert named <= exported.keys(), sorted(named - exported.keys())
    for rule in rules():
        for name in re.findall(r"(?:increase|rate)\((\w+)", rule["expr"]):
            assert exported[name].kind == "counter", f"{rule['alert']}: only counters increase"


def test_every_code_in_a_rule_is_one_of_an_alarm() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "pyreplog" / "autorecovery").rglob("*.py"))
    raised = set(re.findall(r'Alarm\(\s*"([\w-]+)"', sources))
    named = {code for rule in rules() for code in CODE.findall(rule["expr"])}
    assert named and named <= raised


def test_an_alarm_is_exported_by_its_code(bench: RecoveryBench) -> None:
    bench.cluster.metadata.create(metadata_key(99), b"garbled")
    bench.step()
    assert ({"code": "garbled"}, 1.0) in bench.metrics()["pyreplog_autorecovery_alarms"].samples


def test_metrics_of_the_alarm_rules_follow_failures(bench: RecoveryBench) -> None:
    with bench.cluster.create_ledger(3, 2) as ledger:
        ledger.append_batch([b"entry"] * 20)
    bench.step()
    assert bench.value("is_auditor") == 1.0
    quiet = ("lacking_ledgers", "listed_lost_entries", "hold_seconds", "orders", "one_copy_left")
    assert [bench.value(name) for name in quiet] == [0.0] * len(quiet)
    member = bench.cluster.ledger_metadata(ledger.id).last_fragment.ensemble[0]
    bench.cluster.runtime.bookies.pop(member).close()  # type: ignore[attr-defined]
    begin_hold(bench.cluster.metadata, TimedReason(bench.clock.now_us() - 90_000_000, "upgrade"))
    note_lost(bench.cluster.metadata, ledger.id, [LostRange(0, 6, 2, "b@1", 0)])
    bench.step()
    assert [bench.value(name) for name in quiet[:3]] == [1.0, 3.0, 90.0]


def test_the_ledgers_at_one_copy_are_those_of_a_pass_that_runs(bench: RecoveryBench) -> None:
    """A pass that is over has none left: its alarm ends with it."""
    with bench.cluster.create_ledger(2, 2) as ledger:
        ledger.append_batch([b"entry"] * 20)
    member = bench.cluster.ledger_metadata(ledger.id).last_fragment.ensemble[0]
    bench.cluster.runtime.bookies.pop(member).close()  # type: ignore[attr-defined]
    bench.step()
    bench.clock.advance(3_600_000_000)
    bench.step()
    assert bench.recovery.worker_status().copied_ledgers == 1
    assert bench.value("one_copy_left") == 0.0
