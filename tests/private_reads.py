"""Reads of private attributes of other modules' objects, in the Python and the Cython of the package.

Python: `x._name` belongs to a module if the type of `x` is a class of the module, a base of one, or derived from one: a
class and its native base are in two files. The type is known where annotations tell it: of a parameter, a variable, an
attribute, a result; or `x` is a class, or a call of one. Where it is not known, a class of the module or one of their bases
has to have an attribute of that name. Of `self`, `cls` and `super()` everything may be read.

Cython: `x._name` belongs to a module if `x` is `self`, `cls` or `super()`, whatever the types: attributes of native
classes that another class of the file reads need no underscore, because a .pxd says who sees them.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.private_uses import OWN, is_private

CYTHON_TEXT = re.compile(
    r"#[^\n]*|(\w*)(\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
)
CYTHON_READ = re.compile(r"([\w.]*\w|[)\]])\s*\.\s*(_[a-z]\w*)")
PYTHON_READ = re.compile(r"(?<!\bself)(?<!\bcls)(?<!\bsuper\(\))\._[a-z]")
CYTHON_IMPORT = re.compile(r"^[ \t]*(?:from[^\n]*?import|c?import)\b[^\n]*", re.MULTILINE)
CYTHON_OWN = re.compile(r"self|cls")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def tree(path: Path) -> ast.Module:
    """A file of Python, parsed once for all tests of a process."""
    return ast.parse(path.read_text(), path.as_posix())


class ClassId(NamedTuple):
    """A class of the package by its module and its name."""

    module: str
    name: str


class Class(NamedTuple):
    """What a class says about itself. names: its attributes and methods. types: the classes of those that tell them."""

    bases: list[ClassId]
    names: set[str]
    types: dict[str, set[ClassId]]


def _parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


class Module:
    """One module of Python: its classes, and what its names mean."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree
        self.imported: dict[str, ClassId] = {}
        self.results: dict[str, set[ClassId]] = {}
        definitions = list[ast.ClassDef]()
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                definitions.append(node)
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {
                    alias.asname or alias.name: ClassId(node.module or "", alias.name) for alias in node.names
                }
        self.names = {definition.name: ClassId(name, definition.name) for definition in definitions}
        for statement in tree.body:
            if isinstance(statement, Function):
                self.results[statement.name] = self.classes_of(statement.returns)
        self.classes = {definition.name: self._class(definition) for definition in definitions}

    def classes_of(self, annotation: ast.expr | None, within: str = "") -> set[ClassId]:
        """The classes that an annotation names; without those of the library."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return self.classes_of(ast.parse(annotation.value, mode="eval").body, within)
        if isinstance(annotation, ast.BinOp):
            return self.classes_of(annotation.left, within) | self.classes_of(annotation.right, within)
        if isinstance(annotation, ast.Subscript):
            of_type = ast.unparse(annotation.value) in ("type", "Final", "ClassVar")
            return self.classes_of(annotation.slice if of_type else annotation.value, within)
        if not isinstance(annotation, ast.Name):
            return set()
        if annotation.id == "Self" and within:
            return {self.names[within]}
        meant = self.names.get(annotation.id) or self.imported.get(annotation.id)
        return {meant} if meant else set()

    def _class(self, definition: ast.ClassDef) -> Class:
        bases = [base for expression in definition.bases for base in self.classes_of(expression)]
        new_definition = Class(bases, set(), {})
        for statement in definition.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                new_definition.names.add(statement.target.id)
                new_definition.types[statement.target.id] = self.classes_of(statement.annotation, definition.name)
            elif isinstance(statement, ast.Assign):
                new_definition.names.update(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
                if ast.unparse(statement.targets[0]) == "__slots__":
                    new_definition.names.update(
                        str(node.value) for node in ast.walk(statement.value) if isinstance(node, ast.Constant)
                    )
            elif isinstance(statement, Function):
                new_definition.names.add(statement.name)
                new_definition.types.setdefault(statement.name, set()).update(
                    self.classes_of(statement.returns, definition.name)
                )
                self._note_method(statement, definition.name, new_definition)
        return new_definition

    def _note_method(self, method: Function, within: str, definition: Class) -> None:
        """Note the attributes that a method sets."""
        parameters = {argument.arg: self.classes_of(argument.annotation, within) for argument in _parameters(method)}
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in OWN:
                definition.names.add(node.attr)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                definition.types[node.target.attr] = self.classes_of(node.annotation, within)
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                for target, value in _pairs(node.targets[0], node.value):
                    if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and parameters.get(value.id):
                        definition.types.setdefault(target.attr, set()).update(parameters[value.id])


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What is assigned to what: `a, b = c, d` are two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


class Package:
    """All modules of a package below `root`, stubs of native ones included."""

    def __init__(self, root: Path, package: Path) -> None:
        self._root = root
        self.modules: dict[str, Module] = {}
        for path in (*package.rglob("*.py"), *package.rglob("*.pyi")):
            name = self.module_of(path)
            self.modules[name] = Module(name, tree(path))

    def module_of(self, path: Path) -> str:
        parts = path.relative_to(self._root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def find(self, name: ClassId) -> Class | None:
        """A class by a name that some module gives it; None: it is none of the package."""
        module = self.modules.get(name.module)
        if module is None or name.name in module.classes:
            return module and module.classes[name.name]
        passed_on = module.imported.get(name.name)
        return None if passed_on is None or passed_on == name else self.find(passed_on)

    def line(self, name: ClassId) -> set[int]:
        """The class and all of its bases, each by `id`."""
        hit = self.find(name)
        return set() if hit is None else {id(hit)}.union(*(self.line(base) for base in hit.bases))

    def attribute_types(self, owner: ClassId, attribute: str) -> set[ClassId]:
        """The classes of an attribute, or of a method's result."""
        hit = self.find(owner)
        if hit is None:
            return set()
        if attribute in hit.types:
            return hit.types[attribute]
        return set().union(*(self.attribute_types(base, attribute) for base in hit.bases))


class Reads(ast.NodeVisitor):
    """Finds the private attributes of other modules' objects that a module reads."""

    def __init__(self, package: Package, module: Module) -> None:
        self.found: list[str] = []
        self.known = 0
        """Reads of objects whose class was told by an annotation."""
        self._package, self._module, self._within = package, module, ""
        self._scopes: list[dict[str, set[ClassId]]] = []
        self._classes = {id(definition) for definition in module.classes.values()}
        self._family = self._classes.union(*(package.line(name) for name in module.names.values()))
        self._names = set().union(*(self._names_of(name) for name in module.names.values()))

    def _names_of(self, name: ClassId) -> set[str]:
        hit = self._package.find(name)
        return set() if hit is None else hit.names.union(*(self._names_of(base) for base in hit.bases))

    def _is_own(self, name: ClassId) -> bool:
        line, hit = self._package.line(name), self._package.find(name)
        return bool(line & self._classes) or id(hit) in self._family

    def _types(self, expression: ast.expr) -> set[ClassId]:
        """The classes of an expression, as far as annotations tell."""
        if isinstance(expression, ast.NamedExpr):
            return self._types(expression.value)
        if isinstance(expression, ast.Name):
            if expression.id in ("self", "cls") and self._within:
                return {self._module.names[self._within]}
            for scope in reversed(self._scopes):
                if expression.id in scope:
                    return scope[expression.id]
            return self._module.classes_of(expression)
        if isinstance(expression, ast.Attribute):
            return set().union(
                *(self._package.attribute_types(owner, expression.attr) for owner in self._types(expression.value))
            )
        if isinstance(expression, ast.Call):
            if isinstance(expression.func, ast.Name) and expression.func.id in self._module.results:
                return self._module.results[expression.func.id]
            return self._types(expression.func)
        return set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._within = self._within, node.name
        self.generic_visit(node)
        self._within = outer

    def _visit_function(self, node: Function) -> None:
        scope = {
            argument.arg: self._module.classes_of(argument.annotation, self._within) for argument in _parameters(node)
        }
        scope.pop("self", None)
        scope.pop("cls", None)
        self._scopes.append(scope)
        for inner in ast.walk(node):
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                scope[inner.target.id] = self._module.classes_of(inner.annotation, self._within)
        self.generic_visit(node)
        self._scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target, value in _pairs(node.targets[0], node.value):
            if isinstance(target, ast.Name) and self._scopes and not self._scopes[-1].get(target.id):
                self._scopes[-1][target.id] = self._types(value)

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if not is_private(node.attr) or ast.unparse(node.value) in OWN:
            return
        types = {name for name in self._types(node.value) if self._package.find(name) is not None}
        self.known += bool(types)
        if not all(map(self._is_own, types)) if types else node.attr not in self._names:
            self.found.append(ast.unparse(node))


@functools.cache
def _package(root: Path, folder: Path) -> Package:
    return Package(root, folder)


def python_reads(root: Path, package: Path, path: Path) -> Reads:
    """The reads of a module of a package below `root`."""
    whole = _package(root, package)
    module = whole.modules[whole.module_of(path)]
    reads = Reads(whole, module)
    if PYTHON_READ.search(path.read_text()):
        reads.visit(module.tree)
    return reads


def _code_of(match: re.Match[str]) -> str:
    """What is code in a comment (nothing) or in a string: the expressions of one that is formatted."""
    if "f" not in (match[1] or "").lower():
        return '""'
    return " ".join(re.findall(r"\{([^{}]*)\}", match[2]))


def cython_reads(path: Path) -> Iterator[str]:
    """Private attributes that a native module reads of something else than `self`."""
    code = CYTHON_IMPORT.sub("", CYTHON_TEXT.sub(_code_of, path.read_text()))
    for match in CYTHON_READ.finditer(code.replace("super()", "self")):
        if not CYTHON_OWN.fullmatch(match[1]):
            yield f"{match[1]}.{match[2]}"
