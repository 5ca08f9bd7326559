"""docs/free_threading.md has a row for each native module, and says of it what its source shows; without the GIL nothing is imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "pyreplog" / "_native"
DOCUMENT = (ROOT / "docs" / "free_threading.md").read_text()
GUARDS = ("none", "constant", "caller", "lock", "GIL")
SIGNS = {
    "global": r"^ +global ",
    "thread": r"\b__thread\b",
    "lock": r"PyThread_acquire_lock|\bMutex\b|\bpymutex\b|\w\.lock:",
    "atomic": r"\b__atomic_|tail_page cimport",
    "borrowed": r"Py(?:List|Tuple)_GET_ITEM|Py(?:List|Tuple|Dict)_GetItem\b|PyDict_Next",
    "refcount": r"\bPy_REFCNT\b",
    "nogil": r"^ +with nogil\b",
}
THE_GIL_IS_THE_LOCK = re.compile(r"under\s+the\s+GIL|GIL\s+makes|holds?\s+the\s+GIL")
CLASS = re.compile(r"^cdef class (\w+)", re.MULTILINE)


class Row(NamedTuple):
    guard: str
    signs: str
    state: str
    to_do: str


def read_rows() -> dict[str, Row]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.splitlines()]
    found = [(row[0], Row(*row[1:])) for row in cells if len(row) == 5 and "." in row[0]]
    assert len(found) == len(dict(found)), "a file has two rows"
    return dict(found)


ROWS = read_rows()


def sources() -> list[str]:
    """Name all hand-written files; declarations belong to the module beside them. Cython makes NAME.c beside nothing."""
    files = [
        path for path in NATIVE.rglob("*") if path.suffix in {".pyx", ".h", ".c", ".pxd"} and path.stem != "__init__"
    ]
    own = [path for path in files if path.suffix == ".pyx" or not path.with_suffix(".pyx").exists()]
    return sorted(path.relative_to(NATIVE).as_posix() for path in own)


def source(file: str) -> str:
    path = NATIVE / file
    beside = path.with_suffix(".pxd")
    return path.read_text() + (beside.read_text() if path.suffix == ".pyx" and beside.exists() else "")


def test_every_native_file_has_a_row() -> None:
    assert len(sources()) > 90 and sources() == sorted(ROWS)


@pytest.mark.parametrize("file", ROWS)
def test_guide_rows_match_the_native_sources(file: str) -> None:
    row, text = ROWS[file], source(file)
    assert row.guard in GUARDS
    assert row.signs.split() == [sign for sign, pattern in SIGNS.items() if re.search(pattern, text, re.MULTILINE)]
    missing = [name for name in {*CLASS.findall(text)} if f"`{name}`" not in row.state]
    assert not missing, "classes that the row does not name"
    if row.guard == "none":
        assert not CLASS.search(text) and "global" not in row.signs
    if row.guard == "lock" and file != "ledger_log/intake.pyx":
        assert {"lock", "atomic"} & {*row.signs.split()}
    if THE_GIL_IS_THE_LOCK.search(text) or "refcount" in row.signs:
        assert row.guard == "GIL"
    if row.guard == "GIL":
        assert row.state and row.to_do, "a row names the state that breaks, and the mend"


def test_the_summary_counts_files_that_need_the_gil() -> None:
    needs = sum(row.guard == "GIL" for row in ROWS.values())
    assert f"<!-- summary -->\n{needs} of {len(ROWS)} files need the GIL;" in DOCUMENT


# ---- what an import does -------------------------------------------------------------------------------------------


def test_no_module_declares_free_threading_compatibility(tmp_path: Path) -> None:
    """And so Cython says that it cannot."""
    assert not [file for file in sources() if "freethreading_compatible" in source(file)]
    assert "freethreading_compatible" not in (ROOT / "setup.py").read_text()
    for name in ("scheduling.pyx", "scheduling.pxd"):
        (tmp_path / name).write_bytes((NATIVE / "system" / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "cython",
        "-3",
        "--module-name",
        "pyreplog._native.system.scheduling",
        "scheduling.pyx",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    generated = (tmp_path / "scheduling.c").read_text()
    assert "{Py_mod_gil, __Pyx_FREETHREADING_COMPATIBLE}" in generated
    assert re.search(r"^#define __Pyx_FREETHREADING_COMPATIBLE Py_MOD_GIL_USED$", generated, re.MULTILINE)
    assert "{Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}" in generated


@pytest.mark.parametrize("module", ["pyreplog", "pyreplog._native.system.checksum"])
@pytest.mark.parametrize(("gil", "is_refused"), [("False", True), ("True", False), (None, False)])
def test_an_import_without_the_gil_is_refused(module: str, gil: str | None, is_refused: bool) -> None:
    """None: an interpreter from before 3.13 does not say."""
    set_up = f"sys._is_gil_enabled = lambda: {gil}" if gil else "vars(sys).pop('_is_gil_enabled', None)"
    program = f"import sys; {set_up}; import {module}; {module}.open if '.' not in '{module}' else 0"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode != 0) is is_refused, done.stderr
    if is_refused:
        assert "ImportError: pyreplog: expected an interpreter with the GIL" in done.stderr
        assert "PYTHON_GIL=0" in done.stderr
