"""Builds pyreplog and runs its tests on each CPython that pyproject.toml names and this machine has.

    python -m tests.interpreters                                     # `make interpreters`
    python -m tests.interpreters --versions "3.12 3.13" tests/unit   # all other arguments are pytest's

Interpreters are looked for on PATH, and among the versions of pyenv, if there is one (PYENV_ROOT, `pyenv root`). Each
one gets an environment in build/interpreters, which `make` builds as it builds that of `make test`. What an interpreter
prints is in build/interpreters/VERSION.log.

At the end it prints a table, each test that failed, and why tests were skipped. A version that this machine lacks has a row
that says so. The exit code is 1 if a build or a test failed, or if no interpreter was there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = Path("build", "interpreters")  # below ROOT; make wants names without blanks
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
PROBE = """
import ensurepip, json, pathlib, platform, sys, sysconfig
print(json.dumps({
    "implementation": platform.python_implementation(),
    "version": platform.python_version(),
    "headers": pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file(),
    "gil": not sysconfig.get_config_var("Py_GIL_DISABLED"),
}))
"""
NO_TESTS = 5  # pytest's exit code


@dataclass(frozen=True)
class Interpreter:
    """A CPython that can build extension modules. release: all of its version, such as 3.12.1."""

    version: str
    path: Path
    release: str


@dataclass
class Outcome:
    """What an interpreter did. build: "built", or what is wrong. seconds: of the build and of the tests."""

    version: str
    release: str = ""
    build: str = "built"
    build_s: float = 0.0
    tests_s: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    is_good: bool = False


# ---- which interpreters --------------------------------------------------------------------------------------------


def named_versions() -> list[str]:
    """Return the versions that the classifiers of pyproject.toml name, such as 3.12."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [match[1] for line in project["classifiers"] if (match := CLASSIFIER.fullmatch(line))]


def pyenv_versions(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of pyenv's interpreters; None: there is no pyenv."""
    root = environ.get("PYENV_ROOT")
    if root is None and (pyenv := shutil.which("pyenv", path=environ.get("PATH"))) is not None:
        answer = subprocess.run([pyenv, "root"], env=dict(environ), capture_output=True, text=True, check=False)
        root = answer.stdout.strip() or None
    return None if root is None else Path(root, "versions")


def candidates(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the programs that may be an interpreter of a version: those on PATH, then pyenv's, the latest first."""
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder and os.access(path := Path(folder, f"python{version}"), os.X_OK):
            yield path
    if (versions := pyenv_versions(environ)) is not None:
        for folder in sorted(versions.glob(f"{version}.*"), key=numbers, reverse=True):
            if os.access(path := folder / "bin" / f"python{version}", os.X_OK):
                yield path


def numbers(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path.name)]


def probe(version: str, path: Path) -> Interpreter | str:
    """Return an interpreter, or the reason why it cannot be used."""
    answer = subprocess.run([path, "-I", "-c", PROBE], capture_output=True, text=True, check=False)
    if answer.returncode:
        return (answer.stderr.strip() or f"exit code {answer.returncode}").splitlines()[-1]
    facts = json.loads(answer.stdout)
    if facts["implementation"] != "CPython" or not facts["version"].startswith(f"{version}."):
        return f"it is {facts['implementation']} {facts['version']}"
    if not facts["gil"]:
        return "it is a free-threaded build"
    if not facts["headers"]:
        return "it has no headers (Python.h)"
    return Interpreter(version, path, facts["version"])


def find(version: str, environ: Mapping[str, str]) -> Interpreter | str:
    """Return the first interpreter of a version that can be used, or why there is none."""
    refusals = []
    for path in candidates(version, environ):
        answer = probe(version, path)
        if isinstance(answer, Interpreter):
            return answer
        refusals.append(f"{path}: {answer}")
    return "; ".join(["not on this machine" if not refusals else "cannot be used", *refusals])


# ---- one interpreter -----------------------------------------------------------------------------------------------


def run(interpreter: Interpreter, arguments: Sequence[str], root: Path = ROOT) -> Outcome:
    """Build with an interpreter in a tree, and run the tests."""
    outcome = Outcome(interpreter.version, interpreter.release)
    folder = ENVIRONMENTS / interpreter.version
    report, log_path = (root / ENVIRONMENTS / f"{interpreter.version}{suffix}" for suffix in (".xml", ".log"))
    log_path.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    with log_path.open("w") as log:
        print(
            f"Python {interpreter.release} ({interpreter.path}): building, see {log_path.relative_to(root)}", flush=True
        )
        start = time.monotonic()
        made = ["make", f"VENV={folder}", f"PYTHON={interpreter.path}", f"{folder}/test"]
        code = subprocess.run(made, cwd=root, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        outcome.build_s = time.monotonic() - start
        if code:
            outcome.build = f"failed: see {log_path.relative_to(root)}"
            return outcome
        print(f"Python {interpreter.release}: running the tests", flush=True)
        start = time.monotonic()
        command = [
            root / folder / "bin" / "python", "-m", "pytest", f"--junitxml={report}", "--numprocesses=auto", "--maxprocesses=4",
            "--dist=worksteal", *arguments,
        ]  # fmt: skip
        code = subprocess.run(command, cwd=root, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        outcome.tests_s = time.monotonic() - start
    if report.exists():
        count(outcome, ElementTree.parse(report).getroot())
    outcome.is_good = code == 0 and bool(outcome.passed)
    if code and not outcome.failed:
        reason = "no test was selected" if code == NO_TESTS else f"pytest's exit code is {code}"
        outcome.failed.append(f"{reason}: see {log_path.relative_to(root)}")
    return outcome


def count(outcome: Outcome, report: ElementTree.Element) -> None:
    """Add the tests of a report that pytest wrote."""
    for case in report.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(f"{case.get('classname', '')}::{case.get('name', '')}")
        elif (skipped := case.find("skipped")) is not None:
            outcome.skipped[skipped.get("message", "")] += 1
        else:
            outcome.passed += 1


# ---- the report ----------------------------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table with a row for each version."""
    rows = [("interpreter", "build", "passed", "failed", "skipped", "time")]
    for outcome in outcomes:
        name = f"CPython {outcome.release or outcome.version}"
        if not outcome.build_s:
            rows.append((name, outcome.build, "", "", "", ""))
            continue
        rows.append((
            name, f"{outcome.build} in {outcome.build_s:.0f} s" if outcome.build == "built" else outcome.build,
            str(outcome.passed), str(len(outcome.failed)), str(outcome.skipped.total()), f"{outcome.tests_s:.0f} s",
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def details(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a line for each failed test, and for each reason of skipped ones."""
    for outcome in outcomes:
        yield from (f"{outcome.version} failed: {name}" for name in outcome.failed)
        yield from (f"{outcome.version} skipped {times}: {reason}" for reason, times in sorted(outcome.skipped.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Build and test on each interpreter.")
    parser.add_argument("--versions", default=" ".join(named_versions()), help="separated by blanks")
    options, arguments = parser.parse_known_args()
    outcomes = []
    for version in options.versions.split():
        interpreter = find(version, os.environ)
        if isinstance(interpreter, Interpreter):
            outcomes.append(run(interpreter, arguments))
        else:
            outcomes.append(Outcome(version, build=interpreter))
    print("\n".join(["", table(outcomes), *details(outcomes)]))
    tried = [outcome for outcome in outcomes if outcome.build_s]
    return 0 if tried and all(outcome.is_good for outcome in tried) else 1


if __name__ == "__main__":
    sys.exit(main())
