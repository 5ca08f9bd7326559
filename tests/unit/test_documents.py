"""Files, classes, methods, imports and threads that docs/architecture.md and docs/glossary.md name exist; links of documents work.

A name in backticks that looks like a class, a method (`Class.method`) or a function (`function()`) is defined in the file that stands
right behind it: "`Name` (`file`)", "`Name` in `file`", "| `Name` | `file` |". Any other is defined in one of the files that the same
paragraph or row names; where it names none, anywhere in the package.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.test_tidy import LAYERS, PACKAGE, RANK, ROOT, imports, module_of, part_of, sources

DOCS = ROOT / "docs"
ARCHITECTURE, GLOSSARY = DOCS / "architecture.md", DOCS / "glossary.md"
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|pyx|pxd|pyi|h|md))")
NAME = re.compile(r"_?[A-Z]\w*[a-z]\w*(?:\.\w+)?|[a-z_]\w*\(\)|[A-Z_]+")
BESIDE = re.compile(r"`([^`]+)`(?:s? \(| in | \| )`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
THREAD = re.compile(r"`(pyreplog-[a-z-]+)…?`")
PLAIN = {"ADD", "CRC", "HELP", "NAME", "UNKNOWN"}
"""Words of protocols and of command modules, no names that a file defines by themselves."""


class Named(NamedTuple):
    """The files and the names in one paragraph or row."""

    files: list[str]
    names: list[str]


def texts(document: str) -> Iterator[str]:
    """Paragraphs, list items and rows of tables, without programs."""
    document = re.sub(r"^```.*?^```$", "", document, flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n", document):
        yield from re.split(r"\n(?=\||- |\d+\. )", block)


def named(text: str) -> Named:
    spans = SPAN.findall(text)
    files = [span for span in spans if FILE.fullmatch(span)]
    return Named(files, [span for span in spans if NAME.fullmatch(span) and span not in PLAIN])


def place(file: str) -> Path | None:
    """A path of the repository, or of the package."""
    return next((path for folder in (ROOT, PACKAGE) if (path := folder / file).exists()), None)


def files_of(path: Path) -> list[Path]:
    """Return the sources of a file or folder; an extension module has its declarations beside it."""
    if path.is_dir():
        return sources("*.py", "*.pyx", "*.pxd", under=path)
    return [path, *(other for suffix in (".pxd",) if (other := path.with_suffix(suffix)).exists() and other != path)]


@functools.cache
def definitions(path: Path) -> frozenset[str]:
    """Names that a source defines: `Class`, `Class.member`, `function`, `CONSTANT`."""
    if path.suffix == ".py":
        return frozenset(python_definitions(ast.parse(path.read_text()).body))
    return frozenset(cython_definitions(path.read_text()))


def python_definitions(body: list[ast.stmt], within: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from python_definitions(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name
            if within:  # attributes that are set in methods
                yield from (f"{within}{match}" for match in re.findall(r"\bself\.(\w+)\b(?=.*=)", ast.unparse(node)))
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (
                within + item.id for target in targets for item in ast.walk(target) if isinstance(item, ast.Name)
            )
        elif isinstance(node, ast.If | ast.Try):
            yield from python_definitions(node.body, within)


def cython_definitions(text: str) -> Iterator[str]:
    inside = ""
    for line in text.splitlines():
        if line and not line[0].isspace() and line[0] not in "#@)":
            inside = ""
        if match := re.match(r"(?:cdef )?class (\w+)", line):
            inside = f"{match[1]}."
            yield match[1]
        elif match := re.match(r"(\s*)(?:async )?(?:def|cdef|cpdef)\b[^=(\n]*?(\w+)\(", line):
            yield (inside if match[1] else "") + match[2]
        elif match := re.match(r"(\w+) = |    [A-Z_]+ = ", line):
            yield match[0].split("=")[0].strip()


def wrong(document: str) -> list[str]:
    """Return one line for each name of a document that no source defines."""
    actual = []
    for text in texts(document):
        files, names = named(text)
        paths = {file: place(file) for file in files}
        actual += [f"there is no {file}" for file, path in paths.items() if path is None]
        new_paths = [path for path in paths.values() if path is not None] or [PACKAGE]
        known = frozenset[str]().union(
            *(definitions(each_file) for path in new_paths for each_file in files_of(path) if each_file.suffix != ".md")
        )
        where = ", ".join(files) or "the package"
        actual += [f"there is no {name} in {where}" for name in names if name.removesuffix("()") not in known]
        for name, file in BESIDE.findall(text):
            if name in names and (path := paths.get(file)) is not None:
                known = frozenset[str]().union(
                    *(definitions(each_file) for each_file in files_of(path) if each_file.suffix != ".md")
                )
                actual += [] if name.removesuffix("()") in known else [f"there is no {name} in {file} beside it"]
    return actual


# ---- the test's own test ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`Topic.recover` in `topic/owner/topic.py`, `Seam` in `_native/system/scheduling.pyx`", []),
        ("| `Topic` | `topic/` |", []),
        ("`CommitLog`, `write_sync()`, without a file", []),
        ("`Topic` is in `topic/nosuchfile.py`.", ["there is no topic/nosuchfile.py"]),
        ("| `NoSuchClass` | `topic/owner/topic.py` |", ["there is no NoSuchClass in topic/owner/topic.py"]),
        ("`Topic.no_such_method` in\n`topic/owner/topic.py`", ["there is no Topic.no_such_method in topic/owner/topic.py"]),
        ("`Consumer` in `topic/owner/topic.py`", ["there is no Consumer in topic/owner/topic.py"]),
        ("`CommitPointBase.nothing` in `_native/ha/commit_point.pyx`", ["there is no CommitPointBase.nothing in"]),
        ("`Topic` (`topic/owner/topics.py`), not `topic/owner/topic.py`", ["there is no Topic in topic/owner/topics.py beside it"]),
        ("`nothing_at_all()`", ["there is no nothing_at_all() in the package"]),
    ],
)  # fmt: skip
def test_check_reports_names_that_do_not_exist(text: str, expected: list[str]) -> None:
    actual_wrong = wrong(text)
    missing = [wanted for wanted in expected if not any(said.startswith(wanted) for said in actual_wrong)]
    assert not missing and bool(actual_wrong) is bool(expected), actual_wrong


# ---- the documents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "files", "names"),
    [(ARCHITECTURE, 150, 150), (GLOSSARY, 80, 0)],
    ids=lambda value: getattr(value, "stem", ""),
)
def test_files_and_classes_that_are_named(document: Path, files: int, names: int) -> None:
    text = document.read_text()
    all_named = [named(each_text) for each_text in texts(text)]
    assert sum(len(name.files) for name in all_named) > files, "hardly any file was found: the search is broken"
    assert sum(len(name.names) for name in all_named) >= names, "hardly any name was found: the search is broken"
    assert not (missing := wrong(text)), "\n".join(missing)


def test_threads_that_documents_name_exist() -> None:
    missing = []
    threads = 0
    for text in texts(ARCHITECTURE.read_text()):
        files, _ = named(text)
        source = "".join(path.read_text() for file in files if (path := place(file)) is not None and path.is_file())
        for thread in THREAD.findall(text):
            threads += 1
            known = [thread, re.sub(r"^pyreplog-(.+)-$", r'"\1"', thread)]  # "pyreplog-sync-…": made of a task's name
            if files and not any(item in source for item in known):
                missing.append(thread)
    assert threads > 10 and not missing, missing


def test_the_table_of_packages_is_that_of_the_layers() -> None:
    (table,) = re.findall(r"^## Packages$(.*?)^## ", ARCHITECTURE.read_text(), re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", table, re.MULTILINE)
    parts = {part_of(module_of(path)) for path in sources("*.py")} - {"__main__", "_version"}
    numbers = [row & parts for row in LAYERS if row & parts]
    told = [{name for number, name in rows if int(number) == rank} for rank in range(1, len(numbers) + 1)]
    assert told == numbers


def test_arrows_of_the_picture_are_imports() -> None:
    picture, *_ = re.findall(r"^```mermaid\n(.*?)^```$", ARCHITECTURE.read_text(), re.DOTALL | re.MULTILINE)
    seen = {
        (part_of(module_of(path)), part_of(module)) for path in sources("*.py", "*.pyx") for module in imports(path)
    }
    arrows = set()
    for line in picture.splitlines():
        stops = [{name.strip() for name in stop.split("&")} for stop in line.split("-->")]
        arrows |= {(a, b) for upper, lower in itertools.pairwise(stops) for a in upper for b in lower}
    assert {name for arrow in arrows for name in arrow} == RANK.keys() & {name for arrow in seen for name in arrow} - {
        "__main__",
        "_version",
    }
    assert not arrows - seen
    assert not {(a, b) for a, b in seen if {a, b} <= RANK.keys() - {"__main__", "_version"} and a != b} - closure(
        arrows
    ), "no arrow leads there"


def closure(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """All that follows from arrows: if one leads to where another one begins, both make one."""
    known = set(arrows)
    while further := {(a, d) for a, b in known for c, d in known if b == c} - known:
        known |= further
    return known


def test_words_are_sorted_and_stand_once() -> None:
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]*\| `", GLOSSARY.read_text(), re.MULTILINE)
    keys = [word.partition(",")[0].casefold() for word in words]
    assert len(keys) > 80 and keys == sorted(set(keys))
    assert len(words) == GLOSSARY.read_text().count("\n| ") - 1, "a row has no file"


@pytest.mark.parametrize("document", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.stem)
def test_links_of_documents_have_targets(document: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(document.read_text())]
    assert not [link for link in links if link and "://" not in link and not (document.parent / link).exists()]


def test_every_document_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall((ROOT / "README.md").read_text())}
    assert {f"docs/{path.name}" for path in DOCS.glob("*.md")} - linked <= {"docs/format.md"}  # which says: FORMAT.md
