"""All that makes, renames, links, truncates, syncs or removes files goes through one module, so that a disk that loses
what was not synced can be put in its place; and what is excepted from that."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYER = {
    "pyreplog/log/files.py",
    "pyreplog/_native/log/disk.pyx",  # `Steps`: calls of the layer, done with one release of the GIL
    "pyreplog/_native/log/pwrite.pyx",
    "pyreplog/_native/pwrite.h",
}

EXCEPTED = {
    # The lock file: nothing in it has to outlive its process.
    "pyreplog/log/lock.py": ["open_regular", "os.pwrite", "os.pwrite", "os.pwrite", "open_regular", "os.pwrite"],
    # The tail page is opened for stores through a mapping; after a power cut it is not believed.
    "pyreplog/log/startup.py": ["open_changing"],
    "pyreplog/log/truncation.py": ["open_changing"],
    "pyreplog/log/tail_page.py": ["open_changing"],
    # What those calls are.
    "pyreplog/regular_files.py": ["open r+b", "open_regular"],
    # Files in memory (memfd_create).
    "pyreplog/log/fsck/locked_segment.py": ["os.sendfile", "os.ftruncate", "os.pwrite"],
    "pyreplog/bookie/salvage.py": ["os.sendfile", "os.ftruncate", "os.pwrite"],
    "pyreplog/offload/index.py": ["os.write", "os.truncate", "os.pwrite", "os.pwrite"],
    # Stores of objects see to themselves, and SQLite does, its directory included. Its file is made first, empty and for
    # nobody else's eyes; a power cut that takes it takes nothing.
    "pyreplog/offload/storage.py": ["open wb"],
    "pyreplog/metadata/database.py": ["os.open", "sqlite3.connect"],
    "pyreplog/tables/cluster/stored_metadata.py": ["sqlite3.connect"],  # to be read
    # Drafts: written beside their place, by a library or as text, synced and renamed through the layer. Those that were
    # left behind are removed; who loses that does it again.
    "pyreplog/cli/report.py": ["Path.write_text", "parquet.write_table"],
    "pyreplog/reports/export.py": ["parquet.ParquetWriter"],
    "pyreplog/reports/atomic_directories.py": ["shutil.rmtree", "tempfile.mkdtemp", "shutil.rmtree"],
    # Clusters of tests, which are removed at the end.
    "pyreplog/testing/__init__.py": ["tempfile.TemporaryDirectory", "tempfile.TemporaryDirectory"],
    # A last word to the terminal.
    "pyreplog/cli/shared/serving.py": ["os.write"],
    # The null device, for streams that are closed.
    "pyreplog/cli/app.py": ["os.open", "open w", "os.open"],
    # Measures the disk itself, in a temporary directory.
    "pyreplog/cli/bench.py": [
        "tempfile.TemporaryDirectory", "open wb", "open w+b", "os.fsync", "os.pwrite", "os.fdatasync", "Path.write_bytes",
    ],
}  # fmt: skip
"""File: each call in it, in the order of its lines."""

OS = {
    "copy_file_range", "fallocate", "fdatasync", "fsync", "ftruncate", "link", "makedirs", "mkdir", "mkfifo", "mknod",
    "posix_fallocate", "pwrite", "pwritev", "remove", "removedirs", "rename", "renames", "replace", "rmdir", "sendfile",
    "symlink", "sync", "truncate", "unlink", "write", "writev",
}  # fmt: skip
CHANGING_FLAGS = {"O_CREAT", "O_RDWR", "O_WRONLY", "O_TRUNC", "O_APPEND", "O_TMPFILE"}
MODULES = {"shutil", "tempfile"}
WRITERS = {("sqlite3", "connect"), ("parquet", "write_table"), ("parquet", "ParquetWriter")}
PATH_METHODS = {
    "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
KINDS = ast.Call | ast.Attribute | ast.ImportFrom | ast.Name
LAYER_OBJECTS = re.compile(r"(\w+\.)*_?files|steps|disk")  # what the methods of the layer are called on
NO_PATHS = {"topic", "bookie", "self._group", "self._context", "context"}  # have methods of the same names

NATIVE_OS = re.compile(rf"(?<!\w)os\.({'|'.join(sorted(OS))})\s*\(")
NATIVE_C = re.compile(
    r"(?<![\w.])(creat|fallocate|fdatasync|fsync|ftruncate|link|linkat|mkdir|mkdirat|msync|open|openat|posix_fallocate"
    r"|pwrite|pwritev|rename|renameat2?|rmdir|symlink|sync_file_range|syncfs|truncate|unlink|unlinkat)\s*\("
)
NATIVE_PATH = re.compile(rf"(?<=\))\.({'|'.join(sorted(PATH_METHODS))})\s*\(")
NATIVE_NO_CALLS = re.compile(r"^[ \t]*(def|cpdef|cdef)\b.*$|#.*$|^[ \t]*(//|/?\*).*$", re.MULTILINE)
OWN_FUNCTIONS = {"pyreplog/_native/ha/parking.pyx": {"unlink"}}  # of a list in memory


def sources(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in (ROOT / "pyreplog").rglob(pattern))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def changes(source: str) -> Iterator[str]:
    """The calls, and mentions, of what changes files."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, KINDS)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.Call):
            yield from changing_call(node)
        elif isinstance(node, ast.Name):
            if node.id == "open_changing":
                yield node.id
        elif isinstance(node, ast.ImportFrom):
            if node.module in {"os", *MODULES}:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node.value, ast.Name):
            of, attribute = node.value.id, node.attr
            if (of == "os" and attribute in OS) or of in MODULES or (of, attribute) in WRITERS:
                yield f"{of}.{attribute}"


def changing_call(call: ast.Call) -> Iterator[str]:
    of = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if (of, called) in {("os", "open"), ("", "open_regular")}:
        if {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)} & CHANGING_FLAGS:
            yield f"{of}.{called}".lstrip(".")
    elif called in ("open", "fdopen"):
        modes = [
            node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        yield from (f"open {mode}" for mode in modes if re.fullmatch(r"[rwaxbt+]+", mode) and set(mode) & set("wax+"))
    elif called in PATH_METHODS and not LAYER_OBJECTS.fullmatch(of) and of not in {"os", *NO_PATHS}:
        yield f"Path.{called}"


def native_changes(source: str) -> Iterator[str]:
    parts = source.split('"""')  # every second one is a docstring, or C
    code = "".join(part for number, part in enumerate(parts) if number % 2 == 0 or "#include" in part)
    text = NATIVE_NO_CALLS.sub("", code)
    for pattern in (NATIVE_OS, NATIVE_C, NATIVE_PATH):
        yield from (match[1] for match in pattern.finditer(text))


def test_python_changes_files_through_the_layer() -> None:
    changes_by_name = {name(path): list(changes(path.read_text())) for path in sources("*.py")}
    changes_by_name = {path: calls for path, calls in changes_by_name.items() if calls and path not in LAYER}
    assert {path: Counter(calls) for path, calls in changes_by_name.items()} == {
        path: Counter(calls) for path, calls in EXCEPTED.items()
    }


def test_native_code_changes_files_in_the_layer() -> None:
    native_changes_by_name = {
        name(path): set(native_changes(path.read_text())) for path in sources("*.pyx", "*.pxd", "*.h", "*.c")
    }
    wrong = {
        path: calls - OWN_FUNCTIONS.get(path, set())
        for path, calls in native_changes_by_name.items()
        if path not in LAYER
    }
    assert {path: calls for path, calls in wrong.items() if calls} == {}
    assert native_changes_by_name["pyreplog/_native/log/disk.pyx"] >= {"rename", "unlink", "fsync", "fdatasync", "open"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("os.fsync(fd)", "os.fsync"),
        ("call = os.rename", "os.rename"),
        ("from os import rename", "os.rename"),
        ("fd = os.open(path, os.O_WRONLY | os.O_CREAT)", "os.open"),
        ("fd = os.open(path, os.O_RDONLY)", None),
        ("fd = open_regular(path, os.O_RDWR)", "open_regular"),
        ("fd = open_regular(path, os.O_RDONLY)", None),
        ("file = open_changing(path)", "open_changing"),
        ("path.write_bytes(b'')", "Path.write_bytes"),
        ("path.parent.mkdir(parents=True)", "Path.mkdir"),
        ("(folder / name).touch()", "Path.touch"),
        ("file = path.open('ab')", "open ab"),
        ("file = open(path, mode='w')", "open w"),
        ("file = path.open('rb')", None),
        ("shutil.rmtree(path)", "shutil.rmtree"),
        ("self._files.rename(a, b)", None),
        ("files.make_directory(a)", None),
    ],
)
def test_calls_that_change_files_are_found_in_python_code(line: str, told: str | None) -> None:
    assert list(changes(line)) == ([] if told is None else [told])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("        fsync(fd)", "fsync"),
        ("        os.fsync(fd)", "fsync"),
        ("        Path(path).unlink()", "unlink"),
        ("    def rename(self, old, new):", None),
        ("        self.rename(old, new)", None),
        ("        return rename(old, new) != 0 ? errno : 0;", "rename"),
    ],
)
def test_calls_that_change_files_are_found_in_native_code(line: str, told: str | None) -> None:
    assert list(native_changes(line)) == ([] if told is None else [told])
