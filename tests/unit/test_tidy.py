"""The house rules that a machine can check: layers, lazy imports, sizes, stubs."""

from __future__ import annotations

import ast
import graphlib
import importlib
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.private_reads import tree

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pyreplog"

# What may import what: a part sees those in the rows above its own and nothing beside it.
LAYERS = [
    {"errors", "_version"},
    {"times"},
    {"_native"},
    {"base"},
    {"log", "net", "metadata"},
    {"bookie", "offload", "stream", "record_batches"},
    {"ledger", "ha", "rocketmq", "partition"},
    {"cursors", "origins"},
    {"topic"},
    {"geo", "autorecovery"},
    {"kafka"},
    {"facade"},
    {"tables"},
    {"reports"},
    {"spark"},
    {"cli", "testing"},
    {"__main__"},
]
RANK = {part: rank for rank, row in enumerate(LAYERS) for part in row}
# Single modules that count as one part.
BASE = {
    "arguments", "config", "clock", "handles", "metrics", "metrics_http_server", "future", "purgatory", "checksummed_json", "timing_wheel", "defer_sigint", "regular_files", "disk_usage", "log_like", "plurals", "coroutines",
    "event_queue", "fair_lock", "topic_names", "waiting_threads",
}  # fmt: skip

# Put together from all rows up to it.
FACADE = {"cluster"}

LAZY = {
    "numpy",
    "pyarrow",
    "pyspark",
    "kazoo",
    "rich",
    "prometheus_client",
    "sqlite3",
    "multiprocessing",
    "http",
    "fsspec",
}

FOLDERS = ["pyreplog", "tests", "benchmarks", "examples", "docs", ".ci"]
# Put together here so that this file does not name them.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(["work", "root", "home", "tmp"]) + r")/")

CYTHON_FROM = re.compile(
    r"^[ \t]*from[ \t]+(pyreplog[\w.]*)[ \t]+c?import[ \t]+(?:\(([^)]*)\)|([^#\n]*))", re.MULTILINE
)
CYTHON_IMPORT = re.compile(r"^[ \t]*c?import[ \t]+(pyreplog[\w.]*)", re.MULTILINE)
CYTHON_CONSTANT = re.compile(r"^[ \t]*(DEF|IF|ELIF|ELSE)\b", re.MULTILINE)
CYTHON_FUNCTION = re.compile(r"^([ \t]*)(?:async[ \t]+)?(?:cpdef|cdef(?![ \t]+class)|def)\b[^#\n]*\(")


def sources(*patterns: str, under: Path = PACKAGE) -> list[Path]:
    paths = [path for pattern in patterns for path in under.rglob(pattern)]
    return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- layers ----------------------------------------------------------------------------------------------------


def part_of(module: str) -> str:
    """The part of the package a module lies in: `pyreplog.log.files` -> log, `pyreplog.clock` -> base."""
    parts = module.split(".")
    if len(parts) == 1 or parts[1] in FACADE:
        return "facade"
    return "base" if parts[1] in BASE else parts[1]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def resolve(module: str, imported: str) -> str:
    """`from pyreplog import log` imports a module of the package, `from pyreplog import open` the package itself."""
    folder = ROOT.joinpath(*module.split("."))
    if any((folder / f"{imported}{suffix}").exists() for suffix in ("", ".py", ".pyx", ".pxd")):
        return f"{module}.{imported}"
    return module


def python_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: a relative import"
            yield from (resolve(node.module or "", alias.name) for alias in node.names)


def cython_imports(path: Path) -> Iterator[str]:
    text = path.read_text()
    yield from CYTHON_IMPORT.findall(text)
    for module, bracketed, plain in CYTHON_FROM.findall(text):
        names = (word.split()[0] for word in (bracketed or plain).split(",") if word.strip())
        yield from (resolve(module, imported) for imported in names)


def imports(path: Path) -> Iterator[str]:
    actual_python_imports = python_imports(path) if path.suffix in (".py", ".pyi") else cython_imports(path)
    return (module for module in actual_python_imports if module.split(".")[0] == "pyreplog")


def test_imports_point_down() -> None:
    paths = sources("*.py", "*.pyi", "*.pyx", "*.pxd")
    unplaced = {part_of(module_of(path)) for path in paths} - RANK.keys()
    assert not unplaced, "give these a row in LAYERS"
    seen = {(path, part_of(module_of(path)), module, part_of(module)) for path in paths for module in imports(path)}
    assert len(seen) > len(paths), "hardly any import was found: the search is broken"
    wrong = [
        f"{name(path)} ({part}) imports {module}"
        for path, part, module, other in sorted(seen)
        if part != other and RANK[other] >= RANK[part]
    ]
    assert not wrong, "\n".join(wrong)


def import_cycle(paths: list[Path]) -> list[str]:
    """Modules that import each other in a circle, by Python's import and by Cython's cimport; an empty list: none do.

    A .pyx and its .pxd are one module. Imports for annotations count, and those within functions.
    """
    known = {module_of(path) for path in paths}
    graph: dict[str, set[str]] = {}
    for path in paths:
        module = module_of(path)
        graph.setdefault(module, set()).update({*imports(path)} & known - {module})
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [str(module) for module in reversed(error.args[1])]
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Who reads one module of a circle has to read all."""
    paths = sources("*.py", "*.pyx", "*.pxd")
    assert {".py", ".pyx", ".pxd"} == {path.suffix for path in paths}
    assert not import_cycle(paths)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a.pyx": "from pyreplog.b cimport B"}, {"b.pyx": "from pyreplog.a import A"}),
        ({"a.pxd": "from pyreplog cimport b"}, {"b.pyx": "def f():\n    from pyreplog.a cimport (\n        A,\n    )"}),
        ({"a.pxd": "cimport pyreplog.b"}, {"b.py": "if TYPE_CHECKING:\n    from pyreplog.a import A"}),
    ],
    ids=["pyx", "pxd", "py"],
)
def test_import_cycles_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: dict[str, str], second: dict[str, str]
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "pyreplog").mkdir()
    for file, text in {**first, **second}.items():
        (tmp_path / "pyreplog" / file).write_text(f"{text}\n")
    paths = sorted((tmp_path / "pyreplog").iterdir())
    assert {*import_cycle(paths)} == {"pyreplog.a", "pyreplog.b"}
    assert not import_cycle(paths[:1])


def test_cython_imports_have_the_form_that_is_searched_for() -> None:
    """A relative import, several modules in one, a line that goes on, an included file: `imports` would not see them."""
    hidden = re.compile(
        r"^[ \t]*(?:from[ \t]+\..*|c?import[ \t][^#\n]*,.*|(?:from|c?import)\b.*\\$|include\b.*)", re.MULTILINE
    )
    paths = sources("*.pyx", "*.pxd", "*.pxi")
    assert not [f"{name(path)}: {match[0]}" for path in paths for match in hidden.finditer(path.read_text())]


TOPIC_LAYERS = ["model", "client", "owner", "server"]


@pytest.mark.parametrize("folder", TOPIC_LAYERS)
def test_folders_of_topics_import_down_only(folder: str) -> None:
    """Imports for annotations count."""
    above = TOPIC_LAYERS[TOPIC_LAYERS.index(folder) + 1 :]
    paths = sources("*.py", under=PACKAGE / "topic" / folder)
    seen = [(name(path), module.split(".")) for path in paths for module in imports(path)]
    assert len(seen) > len(paths), "hardly any import was found: the search is broken"
    wrong = [
        f"{path} imports {'.'.join(parts)}"
        for path, parts in seen
        if parts[1:2] == ["topic"] and {*parts[2:3]} & {*above}
    ]
    assert not wrong, "\n".join(wrong)


def test_cython_imports_are_found(tmp_path: Path) -> None:
    source = tmp_path / "sample.pyx"
    source.write_text(
        "from pyreplog._native.layout cimport (\n    ALIGN, KEY_MAX,\n)\nfrom pyreplog import log, open\n"
        "def f():\n    from pyreplog.net import frames  # late\n    cimport pyreplog.topic\n"
        "from libc.stdint cimport int64_t\n"
    )
    assert set(imports(source)) == {
        "pyreplog._native.layout",
        "pyreplog.log",
        "pyreplog",
        "pyreplog.net",
        "pyreplog.topic",
    }


# ---- what an import costs --------------------------------------------------------------------------------------


def test_importing_the_package_loads_no_heavy_library() -> None:
    """A fresh `import pyreplog` loads errors alone; the log no optional, and no heavy, library. Nothing warns.

    asyncio is loaded with the log, and ssl and subprocess with it: an AppendFuture can be awaited.
    """
    code = "import sys, pyreplog; print(*sys.modules); pyreplog.open; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    first, loaded = (set(line.split()) for line in run.stdout.splitlines())
    ours = {module for module in first if module.startswith("pyreplog.")}
    assert {module.split(".")[1] for module in ours} == {"errors", "_version"} and "asyncio" not in first
    assert "pyreplog.log.commit_log" in loaded
    assert not LAZY & loaded
    assert not {"pyreplog.cli", "pyreplog.spark"} & loaded


# ---- sizes -----------------------------------------------------------------------------------------------------


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name(path)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def cython_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Functions by indentation: one ends before the next line that is not deeper than its first."""
    lines = path.read_text().splitlines()
    for start, line in enumerate(lines):
        if (match := CYTHON_FUNCTION.match(line)) is None:
            continue
        end = last = start
        for end in range(start + 1, len(lines)):
            text = lines[end].strip()
            if text and len(lines[end]) - len(lines[end].lstrip()) <= len(match[1]) and not text.startswith(")"):
                break
            last = end if text else last
        yield f"{path.name}:{start + 1} {line.strip()}", last - start + 1


def test_functions_are_short() -> None:
    lengths = [function for path in sources("*.py") for function in python_functions(path)]
    lengths += [function for path in sources("*.pyx", "*.pxd") for function in cython_functions(path)]
    assert len(lengths) > 300, "hardly any function was found: the search is broken"
    long = [f"{function}: {length} lines" for function, length in lengths if length > 80]
    assert not long, "\n".join(long)


def code_lines(path: Path) -> int:
    """Lines that are neither blank nor a comment."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in path.read_text().splitlines())


def test_no_package_holds_more_than_a_fifth_of_the_code() -> None:
    lines: Counter[str] = Counter()
    for path in sources("*.py", "*.pyx", "*.pxd"):
        inside = path.relative_to(PACKAGE).parts
        lines[inside[0] if len(inside) > 1 else ""] += code_lines(path)
    assert len(lines) > 15 and lines.total() > 50_000, "hardly any code was found: the search is broken"
    large = {package: f"{count / lines.total():.1%}" for package, count in lines.items() if 5 * count > lines.total()}
    assert not large, (
        "more than a fifth of the code is in one package: move what is general, delete what is there twice"
    )


def test_cython_functions_are_measured(tmp_path: Path) -> None:
    source = tmp_path / "sample.pyx"
    source.write_text(
        "cdef int a(int x,\n           int y\n) noexcept:\n    return 1\n\n\nX = 1\n"
        "cdef class C(B):\n    def b(self):\n        return 1\n\n    cdef object c\n"
    )
    assert [length for _, length in cython_functions(source)] == [4, 2]


# ---- sources ---------------------------------------------------------------------------------------------------


def test_no_compile_time_constants_in_cython() -> None:
    paths = sources("*.pyx", "*.pxd", "*.pxi")
    lines = [f"{name(path)}: {match[1]}" for path in paths for match in CYTHON_CONSTANT.finditer(path.read_text())]
    assert not lines


def test_no_machine_paths() -> None:
    paths = [path for folder in FOLDERS for path in sources("*", under=ROOT / folder) if path.suffix != ".so"]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    texts = {path: path.read_bytes().decode("utf-8", "replace") for path in paths}
    lines = [f"{name(path)}: {match[0]}" for path, text in texts.items() for match in MACHINE_PATH.finditer(text)]
    assert not lines, "\n".join(lines)


# ---- stubs -----------------------------------------------------------------------------------------------------


def public_names(path: Path) -> list[str]:
    """What a compiled module defines, or keeps as a constant, for Python to see."""
    module = importlib.import_module(module_of(path))
    return [
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", module.__name__) == module.__name__
    ]


@pytest.mark.parametrize("path", sources("*.pyx"), ids=lambda path: path.stem)
def test_every_extension_has_a_stub(path: Path) -> None:
    assert path.with_suffix(".pyi").exists() or not public_names(path)


def test_every_stub_has_an_extension() -> None:
    assert not [name(path) for path in sources("*.pyi") if not path.with_suffix(".pyx").exists()]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=name)
def test_package_docstrings_name_every_module(path: Path) -> None:
    told = re.findall(r"\w+", ast.get_docstring(ast.parse(path.read_text())) or "")
    module_names = {item.stem for item in path.parent.glob("*.py")} | {
        item.parent.name for item in path.parent.glob("*/__init__.py")
    }
    assert not {item for item in module_names if not item.startswith("__")} - {"_version"} - {*told}


NATIVE = sorted(path.parent for path in (PACKAGE / "_native").glob("*/__init__.py"))
NATIVE_LAYERS = [
    "system",
    "machines",
    "log",
    "ledger_log",
    "quorum",
    "net",
    "bookie",
    "ledger",
    "ha",
    "topic",
    "tables",
    "kafka",
    "partition",
]


@pytest.mark.parametrize("folder", NATIVE, ids=lambda folder: folder.name)
def test_the_table_of_native_files_names_all(folder: Path) -> None:
    rows = re.findall(r"^\| (.+?) \|", (folder / "__init__.py").read_text(), re.MULTILINE)
    told = {name for row in rows[1:] for name in row.split(", ")}
    assert told == {path.stem for path in sources("*.pyx", "*.pxd", under=folder)} - {"__init__"}


@pytest.mark.parametrize("folder", NATIVE, ids=lambda folder: folder.name)
def test_native_folders_import_down_only(folder: Path) -> None:
    above = NATIVE_LAYERS[NATIVE_LAYERS.index(folder.name) + 1 :]
    for path in sources("*.pyx", "*.pxd", under=folder):  # a stub may name the type of what comes from above
        seen = {module.split(".")[2] for module in imports(path) if module.startswith("pyreplog._native.")}
        assert not seen & {*above}, name(path)
