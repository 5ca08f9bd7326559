"""The demo fails when the partitions of a dead broker are led elsewhere too late, and not because the machine is busy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "flights"))
    import partitions

    return partitions


def test_the_watch_ends_when_all_partitions_have_another_leader(demo: Any) -> None:
    partitions = [SimpleNamespace(leader="1"), SimpleNamespace(leader="")]
    watch = demo.LeaderWatch(partitions, "1")
    watch.start()
    partitions[0].leader = "2"
    watch.join(0.05)
    assert watch.is_alive(), "one of them has none"
    partitions[1].leader = "3"
    watch.join(60)
    assert watch.leaders == ["2", "3"] and watch.led_s > 0
    watch.led_s = demo.LED_ELSEWHERE_S
    watch.check()


def test_partitions_that_stay_without_a_leader_fail_the_demo(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "GIVEN_UP_S", 0.02)
    watch = demo.LeaderWatch([SimpleNamespace(leader="1")], "1")
    watch.run()
    with pytest.raises(demo.Mismatch, match="not all partitions of broker 1"):
        watch.check()


@pytest.mark.parametrize(("stalled_s", "fails"), [(0.0, True), (0.9, True), (1.1, False)])
def test_time_in_which_the_machine_was_busy_does_not_count(demo: Any, stalled_s: float, fails: bool) -> None:
    watch = demo.LeaderWatch([], "1")
    watch.leaders, watch.led_s, watch.stalled_s = ["2"], demo.LED_ELSEWHERE_S + 1.0, stalled_s
    if not fails:
        watch.check()
        return
    with pytest.raises(demo.Mismatch, match=r"after 3\.00 s"):
        watch.check()
