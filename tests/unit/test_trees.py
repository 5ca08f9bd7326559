"""Copies of the tree in which mutants are tested: a test that hangs is ended, whatever it has started, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import TOLD, unfinished_test
from tests.trees import Tree
from tests.waiting import until

FILE = "test_all.py"
PASSES = """
def test_passes():
    pass
"""
WAITS = """
import subprocess, sys
def test_waits():
    other = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    with open("waiting", "w") as file:
        file.write(str(other.pid))
    other.wait()
"""
DOES_NOT_END = """
import threading
def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
"""


def tree_of(folder: Path, *tests: str) -> Tree:
    (folder / "source" / "tests").mkdir(parents=True)
    (folder / "source" / "tests" / FILE).write_text("".join(tests))
    return Tree(folder / "source", folder / "tree")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_test_that_hangs_is_named_and_ended_with_what_it_has_started(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, PASSES, WAITS)
    code, output = tree.test(*TOLD, "tests", silence_s=10.0)
    assert code < 0
    assert unfinished_test(output) == f"tests/{FILE}::test_waits"
    until(lambda: not is_running(int((tree.folder / "waiting").read_text())))


def test_tests_that_pass_and_do_not_end_are_ended(tmp_path: Path) -> None:
    code, output = tree_of(tmp_path, DOES_NOT_END).test(*TOLD, "tests", silence_s=10.0)
    assert code < 0 and "1 passed" in output
    assert unfinished_test(output) == ""


@pytest.mark.parametrize(("test", "code"), [(PASSES, 0), (PASSES + "    assert False\n", 1)], ids=["pass", "fail"])
def test_tests_that_end_are_waited_for(tmp_path: Path, test: str, code: int) -> None:
    actual_test, output = tree_of(tmp_path, test).test(*TOLD, "tests", silence_s=60.0)
    assert actual_test == code and unfinished_test(output) == ""
