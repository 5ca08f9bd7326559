"""Uses of private attributes of pyreplog's objects in tests: `python -m tests.private_uses [FOLDER-OR-FILE]` lists them.

A test that reads `x._y` fails with every change of the inside of `x`, whether something is broken or not. It is counted what
a reader would call so: `_y` is an attribute or a method of a class of pyreplog, native ones included, and `x` is not `self`,
`cls` or `super()`: a test's class that is derived from one of pyreplog's may use what derived classes are given. So are
`getattr`, `setattr`, `monkeypatch.setattr` and `mock.patch.object` with the name as a string. Classes of tests that have an
attribute of the same name are not told apart.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pyreplog"
TESTS = ROOT / "tests"

OF_NAMED_TUPLES = {"_replace", "_asdict", "_make", "_fields"}
OWN = {"self", "cls", "super()"}
NATIVE = re.compile(r"\bself\.(_[a-z]\w*)|\bc?p?def [^(\n=]*?\b(_[a-z]\w*)(?=\(|$)", re.MULTILINE)


class Use(NamedTuple):
    """Where a private attribute is used, and as what."""

    file: str
    line: int
    text: str


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


def _names_of_class(definition: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
    for statement in definition.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__slots__":
            yield from (node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant))


def private_names(package: Path = PACKAGE) -> set[str]:
    """Names of private attributes and methods of the classes of a package, native ones included."""
    names = set[str]()
    for path in (*package.rglob("*.py"), *package.rglob("*.pyi")):
        classes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
        names.update(name for definition in classes for name in _names_of_class(definition))
    for path in (*package.rglob("*.pyx"), *package.rglob("*.pxd")):
        names.update(name for match in NATIVE.finditer(path.read_text()) for name in match.groups() if name)
    return {name for name in names if is_private(name)}


def _named_by_string(call: ast.Call) -> str:
    """The attribute that `setattr(x, "_y", ...)` or `setattr("module.X._y", ...)` names; "": none."""
    for argument, pattern in zip(call.args[:2], (r"[\w.]+\.(\w+)", r"(\w+)"), strict=False):
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            match = re.fullmatch(pattern, argument.value)
            return match[1] if match else ""
    return ""


def uses(path: Path, private: set[str], root: Path = ROOT) -> Iterator[Use]:
    """Uses of private attributes in a file, by line."""
    file = path.relative_to(root).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        is_use = (
            node.attr in private and ast.unparse(node.value) not in OWN
            if isinstance(node, ast.Attribute)
            else isinstance(node, ast.Call) and _named_by_string(node) in private
        )
        if is_use and isinstance(node, ast.Attribute | ast.Call):
            yield Use(file, node.lineno, ast.unparse(node))


def all_uses(folder: Path = TESTS) -> list[Use]:
    """All uses of private attributes under a folder of the tests, or in one of their files."""
    private = private_names()
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    return [use for path in paths for use in sorted(uses(path, private))]


def main() -> None:
    uses = all_uses(*(Path(argument).resolve() for argument in sys.argv[1:2]))
    if len(sys.argv) > 1:
        print(*(f"{use.file}:{use.line} {use.text}" for use in uses), sep="\n")
    else:
        print(*(f"{count:4} {file}" for file, count in Counter(use.file for use in uses).most_common()), sep="\n")
    print(len(uses))


if __name__ == "__main__":
    main()
