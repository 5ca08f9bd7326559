"""The guide's programs run as they are printed, one after the other; and what it tells of settings and metrics is so."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyreplog.topic.config import SubscriptionConfig, TopicConfig
from pyreplog.topic.statistics.metrics import topic_metrics

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "topics.md"
SERVED = "127.0.0.1:7400"
"""Where the guide's server listens; here it takes a free port."""


def blocks(path: Path, heading: str = "") -> list[str]:
    """The Python programs of a page, or of what follows a heading up to the next one."""
    text = path.read_text()
    if heading:
        text = re.split(r"^#+ ", text.split(f"\n{heading}\n")[1], flags=re.MULTILINE)[0]
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def patient(block: str) -> str:
    """The same, on a machine that may have much else to do."""
    return re.sub(r"timeout([=(])5\.0", r"timeout\g<1>30.0", block).replace("(timeout=1.0)", "(timeout=5.0)")


def run(block: str, namespace: dict[str, Any]) -> None:
    """Run it. What stands in a comment behind a `print` is what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(patient(block), "guide", "exec"), namespace)
    printed = out.getvalue().splitlines()
    for promised in re.findall(r"^ *print\(.*\)  # (.*)$", block, re.MULTILINE):
        assert promised in printed, f"{block}\nprinted {printed}"


@contextlib.contextmanager
def server(directory: str) -> Iterator[str]:
    """`pyreplog serve`, where it serves."""
    command = [sys.executable, "-W", "error", "-m", "pyreplog", "serve", directory, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    found = blocks(GUIDE)
    try:
        for block in found:
            if SERVED in block:
                with server("data/cluster") as address:
                    run(block.replace(SERVED, address), namespace)
            else:
                run(block, namespace)
    finally:
        if "cluster" in namespace:
            namespace["cluster"].close()
    assert len(found) > 10
    assert {path.name for path in (tmp_path / "data" / "shop").iterdir()} >= {"metadata.sqlite", "bookie-0", "bookie-2"}


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "README.md", "### Topics")
    assert found
    for block in found:
        run(f"import pyreplog\n{block}", {})


def test_the_guide_names_all_settings() -> None:
    text = GUIDE.read_text()
    fields = [field.name for settings in (TopicConfig, SubscriptionConfig) for field in dataclasses.fields(settings)]
    assert [name for name in fields if f"`{name}" not in text] == []


def test_operations_name_all_metrics_of_topics() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    told = set(re.findall(r"`(pyreplog_(?:topic|subscription)_\w+)`", text))
    there = {metric.name + ("_total" if metric.kind == "counter" else "") for metric in topic_metrics([])}
    assert told == there
