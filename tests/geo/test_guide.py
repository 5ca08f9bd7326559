"""docs/geo.md: its programs and commands run as printed, and its lists of metrics and states are complete."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

import pyreplog
from pyreplog.geo.metrics import geo_metrics
from pyreplog.geo.replicator_status import ReplicatorState, ReplicatorStatus
from pyreplog.topic.model.config import TopicConfig
from tests.guides import ROOT, blocks, fences, run_as_promised, server
from tests.waiting import until

GUIDE = ROOT / "docs" / "geo.md"
SERVED = re.compile(r"^\$ pyreplog serve (\S+) .*--listen (\S+)$", re.MULTILINE)


def test_programs_of_the_geo_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    programs = blocks(GUIDE)
    assert len(programs) > 3
    try:
        for program in programs:
            run_as_promised(program, namespace)
    finally:
        for name in ("server", "east", "west"):
            if name in namespace:
                namespace[name].close()


def test_each_setting_of_a_topic_may_differ_or_has_to_agree() -> None:
    section = GUIDE.read_text().partition("### Settings that may differ\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(TopicConfig))


def test_commands_of_the_geo_guide_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands against two servers at free ports, and compare what they print with the lines below each."""
    monkeypatch.chdir(tmp_path)
    consoles = [text for language, text in fences(GUIDE) if language == "console"]
    served = SERVED.findall(consoles[0])
    assert [folder for folder, _ in served] == ["data/east", "data/west"] and len(consoles) == 6
    with ExitStack() as stack:
        places = {listen: stack.enter_context(server(folder)) for folder, listen in served}
        for console in consoles[1:]:
            for listen, address in places.items():
                console = console.replace(listen, address)
            for command, printed in re.findall(r"^\$ pyreplog (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE):
                if command.startswith("topic consume"):
                    until(lambda: "orders" in topics_of(places["127.0.0.1:7402"]))
                if command.startswith(("geo readiness", "geo where", "geo handover")):
                    until(lambda: run("geo readiness data/east orders").returncode == 0)  # policies take effect soon
                done = run(command)
                assert done.returncode == 0, done.stderr
                assert not printed or done.stdout == printed


def run(command: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-W", "error", "-m", "pyreplog", *shlex.split(command)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def topics_of(address: str) -> list[str]:
    with pyreplog.connect(f"pyreplog://{address}") as client:
        return client.topics()


def test_operations_name_all_metrics() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    named = {*re.findall(r"`(pyreplog_geo_\w+)`", text)}
    exported = {metric.name + ("_total" if metric.kind == "counter" else "") for metric in geo_metrics([], 0)}
    assert named == exported
    assert {*re.findall(r"pyreplog_geo_\w+", GUIDE.read_text())} <= exported


def test_the_guide_names_all_states() -> None:
    table = GUIDE.read_text().partition("| state | meaning |")[2].partition("\n\n")[0]
    assert {*re.findall(r"^\| `(\w+)`", table, re.MULTILINE)} == {*get_args(ReplicatorState)} - {"closed"}


def test_the_rules_are_those_of_prometheus() -> None:
    (rules,) = [text for language, text in fences(GUIDE) if language == "yaml"]
    (group,) = yaml.safe_load(rules)["groups"]
    assert [rule["alert"] for rule in group["rules"]] == ["GeoReplicationNeedsADecision", "GeoReplicationLags"]


def test_geo_metrics_show_the_replicator_status() -> None:
    behind = ReplicatorStatus(
        "orders", "b", "connecting", 5, 9, 4, 400, oldest_unsent_us=1_000_000, sent_messages=5, sent_bytes=50,
        skipped=(("expired", 2),), reconnects=3, error="away",
    )  # fmt: skip
    stopped = ReplicatorStatus("clicks", "b", "diverged", None, 9, 9, 900, alarm="decide")
    values = {
        (metric.name.removeprefix("pyreplog_geo_"), *labels.values()): value
        for metric in geo_metrics([behind, stopped], 3_500_000)
        for labels, value in metric.samples
    }
    assert {key: value for key, value in values.items() if "clicks" not in key} == {
        ("replications", "b", "connecting"): 1, ("replications", "b", "diverged"): 1,
        ("unsent_messages", "orders", "b"): 4, ("unsent_bytes", "orders", "b"): 400,
        ("oldest_unsent_seconds", "orders", "b"): 2.5, ("alarm", "orders", "b"): 0,
        ("sent_messages", "orders", "b"): 5, ("sent_bytes", "orders", "b"): 50, ("reconnects", "orders", "b"): 3,
        ("skipped_messages", "orders", "b", "expired"): 2,
    }  # fmt: skip
    assert values["alarm", "clicks", "b"] == 1 and values["unsent_messages", "clicks", "b"] == 9
