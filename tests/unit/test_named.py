"""What documents, sources and planted bugs name is there: tests, files, commands; and every plant still applies."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pyreplog.cli.app import main

ROOT = Path(__file__).resolve().parents[2]
PLANTS = sorted((ROOT / "tests" / "plants").glob("*.patch"))
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "pyreplog" / "_native" / "FORMAT.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SOURCES = [*DOCUMENTS, *PLANTS]
SOURCES += [path for folder in ("pyreplog", "tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
NAMED = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")
MODULE = re.compile(r"python -m ((?:benchmarks|tests|examples)[\w.]*)")
COMMAND = re.compile(r"`pyreplog ([a-z]+)")


def matches_in(pattern: re.Pattern[str], paths: list[Path]) -> Iterator[tuple[str, re.Match[str]]]:
    for path in paths:
        for match in pattern.finditer(path.read_text()):
            yield path.relative_to(ROOT).as_posix(), match


def test_tests_that_sources_name_exist() -> None:
    names, missing = 0, []
    for where, match in matches_in(NAMED, SOURCES):
        names += 1
        path = ROOT / match[1]
        if not path.exists() or (
            match[2] and not re.search(rf"\b(def|class) {match[2]}\b|\b{match[2]}\b.* = ", path.read_text())
        ):
            missing.append(f"{where}: {match[0]}")
    assert names > len(PLANTS) and not missing, "\n".join(missing)


def test_modules_that_sources_name_exist() -> None:
    missing = []
    for where, match in matches_in(MODULE, SOURCES):
        path = ROOT / match[1].strip(".").replace(".", "/")
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
            missing.append(f"{where}: {match[1]}")
    assert not missing, "\n".join(missing)


def test_commands_that_documents_name_exist(capsys) -> None:
    with contextlib.suppress(SystemExit):
        main(["--help"])
    matches = set(re.findall(r"^    ([a-z]+)\b", capsys.readouterr().out, re.MULTILINE))
    named = {match[1] for _, match in matches_in(COMMAND, DOCUMENTS)}
    assert len(named) > 10 and named <= matches, named - matches


def test_targets_of_make_that_are_named() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {match[1] for _, match in matches_in(re.compile(r"`make ([a-z]+)"), DOCUMENTS)}
    assert len(named) > 6 and named <= targets, named - targets


def test_plants_apply_and_name_a_test() -> None:
    """What they change has changed meanwhile, else."""
    assert len(PLANTS) > 200
    bad = []
    for path in PLANTS:
        command = ["git", "apply", "--check", "-C1", str(path)]
        if (
            "# caught by: tests/" not in path.read_text()
            or subprocess.run(command, cwd=ROOT, capture_output=True).returncode
        ):
            bad.append(path.name)
    assert not bad, bad
