"""The mutator of `make mutants`: which changes it makes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutations import mutations
from tests.mutants.targets import TARGETS


def changed(folder: Path, source: str, name: str = "sample.py") -> list[str]:
    """Each mutant of a source, whole."""
    path = folder / name
    path.write_text(source)
    return [mutation.applied(source) for mutation in mutations(path, name)]


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("if a < b:\n    pass\n", ["if a <= b:\n    pass\n"]),
        ("x = a == b\n", ["x = a != b\n"]),
        ("x = a is not b\n", ["x = a is b\n"]),
        ("x = a is b\n", ["x = a is not b\n"]),
        ("x = a in b\n", ["x = a not in b\n"]),
        ("x = [a for a in b]\n", []),
        ("for a in b:\n    pass\n", []),
        ("x = a - b\n", ["x = a + b\n"]),
        ("x = -b\n", []),
        ("x = 0\n", ["x = 1\n"]),
        ("x = 0x0f\n", ["x = 16\n"]),
        ("x = True\n", ["x = False\n"]),
        ("x = not a\n", ["x = a\n"]),
        ("x = a not in b\n", []),
        ("x = a or b\n", ["x = a and b\n"]),
        ("while a:\n    break\n", ["while a:\n    continue\n"]),
        ("f(a)\n", ["pass\n"]),
        ("x = f(a)\n", []),
        ("f(a)\ng.b = a\n", ["pass\ng.b = a\n", "g.b = a\nf(a)\n"]),
        ("x = f(a)\ny = g(a)\n", []),
    ],
)
def test_mutants_of_python_are_the_listed_ones(tmp_path: Path, source: str, mutants: list[str]) -> None:
    assert changed(tmp_path, source) == mutants


@pytest.mark.parametrize(
    "source",
    [
        "import a\n", "from a import b\n", '"""1 < 2"""\n', "def f(a=1):\n    pass\n", "raise E(1)\n", "_log.info(1)\n",
        "LIMIT = 3\n", "@wraps(1)\ndef f():\n    pass\n",
    ],
)  # fmt: skip
def test_mutator_leaves_excluded_code_unchanged(tmp_path: Path, source: str) -> None:
    assert changed(tmp_path, source) == []


def test_mutants_of_cython_leave_declarations_alone(tmp_path: Path) -> None:
    source = "cdef int a\ncdef int f(int b) noexcept nogil:\n    return (<const char *>p)[0] < b\n"
    assert changed(tmp_path, source, "sample.pyx") == [
        source.replace("[0]", "[1]"), source.replace(" < b", " <= b"),
    ]  # fmt: skip


def test_an_identity_outlasts_changes_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("x = a < b\n")
    before = [mutation.identity for mutation in mutations(path, "sample.py")]
    path.write_text("import a\n\nx = a < b\nx = a < b\n")
    after = [mutation.identity for mutation in mutations(path, "sample.py")]
    assert before == after[:1] and len(set(after)) == 2


def test_every_target_has_sources_and_tests() -> None:
    for target in TARGETS:
        assert target.files() and all(Path(test).exists() for test in target.tests), target.name
