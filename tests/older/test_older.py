"""The scenarios of `make older`, with the present tree in place of the older one."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.older.__main__ import run
from tests.older.build import ROOT, Build, expect
from tests.older.group import upgrade_group

PRESENT = Build("the present tree", Path(sys.executable), ROOT)


def test_a_subscription_goes_on_in_the_other_region_and_both_are_upgraded(tmp_path: Path) -> None:
    run(PRESENT, PRESENT, PRESENT, tmp_path)


def test_a_replica_group_is_upgraded_in_the_documented_order(tmp_path: Path) -> None:
    upgrade_group(PRESENT, PRESENT, tmp_path)


def test_a_replica_group_is_upgraded_in_the_documented_order_to_another_protocol(tmp_path: Path) -> None:
    """A later version refuses nodes of the present one, and loses nothing that was acknowledged."""
    later = later_build(tmp_path / "later")
    upgrade_group(PRESENT, later, tmp_path, same_protocol=False)


def later_build(folder: Path) -> Build:
    """Make a copy of the present tree, of links, in which nodes of a replica group speak a higher version."""
    source = ROOT / "pyreplog"
    shutil.copytree(source, folder / "pyreplog", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    messages = folder / "pyreplog" / "ha" / "protocol" / "messages.py"
    text = messages.read_text()
    messages.unlink()
    messages.write_text(re.sub(r"^VERSION = (\d+)$", lambda found: f"VERSION = {int(found[1]) + 1}", text, flags=re.M))
    assert messages.read_text() != text
    return Build("a later version", Path(sys.executable), folder)


@pytest.mark.parametrize(
    ("numbers", "error"),
    [([1, 2], "missing \\[3\\]"), ([1, 2, 3, 3], "too many \\[3\\]"), ([1, 2, 3, 4], "too many \\[4\\]")],
)
def test_missing_and_repeated_messages_are_named(numbers: list[int], error: str) -> None:
    with pytest.raises(SystemExit, match=error):
        expect(numbers, {1, 2, 3}, "then")


def test_exit_codes_that_are_not_accepted_end_the_program() -> None:
    not_ready = "import sys; print('[]'); sys.exit(10)"
    assert PRESENT.run("-c", not_ready, accepted=(0, 10)) == []
    with pytest.raises(SystemExit, match="exit 10"):
        PRESENT.run("-c", not_ready)
