"""The programs of the guide run as printed, one after the other, and its lists of settings and metrics are complete."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.topic.model.config import TopicConfig
from pyreplog.topic.owner.report import topic_metrics
from tests.guides import ROOT, blocks, run_as_promised, server

GUIDE = ROOT / "docs" / "topics.md"
SERVED = "127.0.0.1:7400"
"""The address of the guide's server, which is replaced by a free port."""


def test_programs_of_the_guide_to_topics_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    actual_blocks = blocks(GUIDE)
    try:
        for block in actual_blocks:
            if SERVED in block:
                with server("data/cluster") as address:
                    run_as_promised(block.replace(SERVED, address), namespace)
            else:
                run_as_promised(block, namespace)
    finally:
        if "cluster" in namespace:
            namespace["cluster"].close()
    assert len(actual_blocks) > 10
    assert {path.name for path in (tmp_path / "data" / "shop").iterdir()} >= {"metadata.sqlite", "bookie-0", "bookie-2"}


def test_the_guide_names_all_settings() -> None:
    text = GUIDE.read_text()
    fields = [field.name for settings in (TopicConfig, SubscriptionConfig) for field in dataclasses.fields(settings)]
    assert [name for name in fields if f"`{name}" not in text] == []


def test_operations_name_all_metrics_of_topics() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"`(pyreplog_(?:topic|subscription)_\w+)`", text))
    names = {metric.name + ("_total" if metric.kind == "counter" else "") for metric in topic_metrics([])}
    assert named == names
