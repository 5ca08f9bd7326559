"""`make interpreters` takes the right interpreters and reports each; all documents name the same versions."""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import sys
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest

from tests.interpreters import Interpreter, Outcome, count, details, find, named_versions, probe, run, table

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "3.12.7"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{dedent(text)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def python(path: Path, version: str = RELEASE, **other: object) -> Path:
    """Make a program that answers the probe as an interpreter of this version would."""
    answer = {"implementation": "CPython", "version": version, "headers": True, "gil": True, **other}
    return program(path, f"echo '{json.dumps(answer)}'\n")


# ---- finding -------------------------------------------------------------------------------------------------------


def test_the_first_one_on_path_that_works(tmp_path: Path) -> None:
    program(tmp_path / "shims" / "python3.12", "echo 'python3.12: command not found' >&2\nexit 127\n")
    good = python(tmp_path / "bin" / "python3.12")
    python(tmp_path / "later" / "python3.12", "3.12.9")
    path = os.pathsep.join(str(tmp_path / name) for name in ("absent", "shims", "bin", "later"))
    assert find("3.12", {"PATH": path}) == Interpreter("3.12", good, RELEASE)


@pytest.mark.parametrize("named", ["PYENV_ROOT", "pyenv root"])
def test_probe_finds_the_latest_release_of_pyenv(tmp_path: Path, named: str) -> None:
    for version in ("3.1.12", "3.12.9", "3.12.10", "3.13.0"):
        minor = version.rpartition(".")[0]
        python(tmp_path / "root" / "versions" / version / "bin" / f"python{minor}", version)
    environ = {"PATH": str(tmp_path / "bin")}
    if named == "PYENV_ROOT":
        environ["PYENV_ROOT"] = str(tmp_path / "root")
    else:
        program(tmp_path / "bin" / "pyenv", f'test "$1" = root && echo {tmp_path}/root\n')
    latest = tmp_path / "root" / "versions" / "3.12.10" / "bin" / "python3.12"
    assert find("3.12", environ) == Interpreter("3.12", latest, "3.12.10")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"implementation": "PyPy"}, "it is PyPy 3.12.7"),
        ({"version": "3.1.2"}, "it is CPython 3.1.2"),
        ({"gil": False}, "it is a free-threaded build"),
        ({"headers": False}, "it has no headers (Python.h)"),
    ],
)
def test_find_reports_an_interpreter_that_cannot_build(tmp_path: Path, facts: dict[str, object], reason: str) -> None:
    path = python(tmp_path / "python3.12", **facts)  # type: ignore[arg-type]
    assert find("3.12", {"PATH": str(tmp_path)}) == f"cannot be used; {path}: {reason}"


def test_find_without_an_interpreter_reports_its_absence(tmp_path: Path) -> None:
    assert find("3.12", {"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path)}) == "not on this machine"


def test_probe_finds_the_running_interpreter() -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    path = Path(sys.executable)
    assert probe(version, path) == Interpreter(version, path, platform.python_version())
    assert probe("3.1", path) == f"it is CPython {platform.python_version()}"


# ---- running -------------------------------------------------------------------------------------------------------

MAKEFILE = """
$(VENV)/test:
\tmkdir -p $(VENV)/bin
\tcp $(PYTHON) $(VENV)/bin/python
"""
REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_good" />
<testcase classname="tests.unit.test_a" name="test_bad"><failure message="x" /></testcase>
<testcase classname="tests.unit.test_a" name="test_worse"><error message="x" /></testcase>
<testcase classname="tests.unit.test_a" name="test_other"><skipped message="no Java" /></testcase>
<testcase classname="tests.unit.test_b" name="test_other"><skipped message="no Java" /></testcase>
</testsuite></testsuites>"""


def test_a_report_of_junit_is_counted() -> None:
    outcome = Outcome("3.12")
    count(outcome, ElementTree.fromstring(REPORT))
    assert (outcome.passed, outcome.failed) == (1, ["tests.unit.test_a::test_bad", "tests.unit.test_a::test_worse"])
    assert list(details([outcome])) == [
        "3.12 failed: tests.unit.test_a::test_bad",
        "3.12 failed: tests.unit.test_a::test_worse",
        "3.12 skipped 2: no Java",
    ]


@pytest.mark.parametrize(
    ("report", "code", "failed", "is_good"),
    [
        ('<t><testcase name="x" /></t>', 0, [], True),
        ('<t><testcase name="x"><failure /></testcase></t>', 1, ["::x"], False),
        ("<t></t>", 5, ["no test was selected: see build/interpreters/3.12.log"], False),
        ('<t><testcase name="x" /></t>', 139, ["pytest's exit code is 139: see build/interpreters/3.12.log"], False),
    ],
)
def test_a_run_of_an_interpreter_reports_its_outcome(
    tmp_path: Path, report: str, code: int, failed: list[str], is_good: bool
) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    path = program(
        tmp_path / "python3.12",
        f"""
        for argument; do case $argument in --junitxml=*) echo '{report}' > "${{argument#*=}}" ;; esac; done
        echo "$@"
        exit {code}
        """,
    )
    outcome = run(Interpreter("3.12", path, RELEASE), ["tests/unit"], tmp_path)
    assert (outcome.build, outcome.failed, outcome.is_good) == ("built", failed, is_good)
    assert (tmp_path / "build" / "interpreters" / "3.12.log").read_text().rstrip().endswith("tests/unit")


def test_a_failed_build_of_an_interpreter_is_reported(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("# no rule")
    outcome = run(Interpreter("3.12", tmp_path / "python3.12", RELEASE), [], tmp_path)
    assert outcome.build == "failed: see build/interpreters/3.12.log" and not outcome.is_good
    assert "No rule" in (tmp_path / "build" / "interpreters" / "3.12.log").read_text()


def test_the_table_of_interpreters_shows_each_outcome() -> None:
    good = Outcome("3.12", "3.12.1", build_s=61.2, tests_s=1380.4, passed=9000)
    good.skipped["no Java"] += 2
    assert table([good, Outcome("3.13", build="not on this machine")]).splitlines() == [
        "interpreter     build                passed  failed  skipped  time",
        "CPython 3.12.1  built in 61 s        9000    0       2        1380 s",
        "CPython 3.13    not on this machine",
    ]


# ---- the versions --------------------------------------------------------------------------------------------------


def test_all_documents_name_the_same_python_versions() -> None:
    versions = named_versions()
    assert versions == sorted(versions, key=lambda version: int(version.partition(".")[2])) and len(versions) > 1
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={versions[0]}"' in project
    assert f'\npython_version = "{versions[0]}"\n' in project  # of mypy
    assert f'target-version = "py{versions[0].replace(".", "")}"' in project
    makefile = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile is not None and makefile[1].split() == versions
    for document in ("README.md", "CONTRIBUTING.md", "docs/compatibility.md", "docs/log.md", "docs/quickstart.md"):
        text = " ".join((ROOT / document).read_text().split())
        assert re.search(rf"Python {', '.join(versions[:-1])} (and|or) {versions[-1]}\b", text), document
