"""What mkdocs.yml adds to MkDocs: pages from outside `docs/`, lists of errors, docstrings of compiled modules, shared
descriptions of arguments.

Nothing here needs the network. A docstring says `docs/log.md` in plain text; on the site it is a link.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from griffe import Docstring, Extension, Function, Module, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "index.md": "README.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "FORMAT.md": "pyreplog/_native/FORMAT.md",
    "examples.md": "examples",
    "license.md": "LICENSE",
}
"""Page of the site -> the file or folder of the repository that it shows."""

ERRORS = re.compile(r"^<!-- errors of (\w+) -->$", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
SHARED_ARGUMENTS = re.compile(
    r"^(?:The arguments are|Arguments that are not listed are) those of `([\w.]+)`\.$", re.MULTILINE
)
ARGUMENTS = re.compile(r"^Args:\n(?:(?: .*)?\n)*?(?=\S|\Z)", re.MULTILINE)
GUIDE = re.compile(r"\bdocs/([\w-]+)\.md(#[\w-]+)?")

logger = logging.getLogger("mkdocs.hooks.docs_site")


# ---- pages -----------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside `docs/`."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=_text_of(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to pages, and markers into errors."""
    name = page.file.src_uri
    folder = (ROOT / OUTSIDE[name] if name in OUTSIDE else ROOT / "docs" / name).parent
    depth = name.count("/")
    markdown = LINK.sub(lambda link: "](" + "../" * depth + _page_of(folder, link[1]), markdown)
    return ERRORS.sub(lambda marker: errors_of(marker[1]), markdown)


def _text_of(path: Path) -> str:
    if path.is_dir():
        programs = sorted(path.glob("*.py"))
        return "# Examples\n\n" + "\n\n".join(
            f"## {file.name}\n\n```python\n{file.read_text()}```" for file in programs
        )
    return path.read_text() if path.suffix else f"# {path.name.capitalize()}\n\n```text\n{path.read_text()}```\n"


def _page_of(folder: Path, link: str) -> str:
    """Name the page that shows what a link of a file in `folder` leads to, from the top of the site."""
    target = (folder / link).resolve()
    for page, source in OUTSIDE.items():
        if target == ROOT / source:
            return page
    if target == ROOT / "docs" / "format.md":
        return "FORMAT.md"
    docs = ROOT / "docs"
    return target.relative_to(docs).as_posix() if target.is_relative_to(docs) else link


# ---- errors ----------------------------------------------------------------------------------------------------


def errors_of(module: str) -> str:
    """List the errors of a module of `pyreplog.errors` as a table, and then each with its docstring."""
    source = importlib.import_module(f"pyreplog.errors.{module}")
    classes = [
        value for value in vars(source).values() if inspect.isclass(value) and value.__module__ == source.__name__
    ]
    rows = "\n".join(
        f"| [`{error.__name__}`][pyreplog.{error.__name__}] | {_bases(error)} | {'yes' if error.retriable else 'no'} "
        f"| {error.exit_code} |"
        for error in classes
    )
    entries = "\n\n".join(
        f"::: pyreplog.{error.__name__}\n    options:\n      heading_level: 3\n      merge_init_into_class: false"
        for error in classes
    )
    return f"| error | below | retriable | exit code |\n|---|---|---|---|\n{rows}\n\n{entries}"


def _bases(error: type) -> str:
    return ", ".join(
        f"[`{base.__name__}`][pyreplog.{base.__name__}]" if base.__module__ != "builtins" else f"`{base.__name__}`"
        for base in error.__bases__
    )


# ---- docstrings ------------------------------------------------------------------------------------------------


class NativeDocstrings(Extension):
    """Give what a stub (`.pyi`) declares the docstring of the compiled module, and link the guides that are named."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is None and Path(obj.filepath).suffix == ".pyi" and obj.name != "__init__":
            text = _compiled_docstring(obj)
            if text:
                obj.docstring = Docstring(text, parent=obj, parser="google")
        if obj.docstring is not None:
            obj.docstring.value = GUIDE.sub(_guide_link, obj.docstring.value)


class SharedArguments(Extension):
    """Write out "The arguments are those of `Class.method`." (or `method`, of the same class) as a section `Args:`."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        functions = {f"{function.parent.name}.{function.name}": function for function in _functions(pkg)}
        for function in functions.values():
            if function.docstring is None or not (shared := SHARED_ARGUMENTS.search(function.docstring.value)):
                continue
            texts = _arguments(function, functions)
            names = [parameter.name.strip("*") for parameter in function.parameters]
            lines = [f"    {name}: " + texts[name].replace("\n", "\n        ") for name in names if name in texts]
            own = ARGUMENTS.sub("", function.docstring.value)
            function.docstring.value = own.replace(shared[0], "\n".join(["Args:", *lines]))


def _functions(place: Object) -> Iterator[Function]:
    for member in place.members.values():
        if member.is_alias:
            continue
        if member.is_function:
            yield member
        else:
            yield from _functions(member)


def _arguments(function: Function, functions: dict[str, Function]) -> dict[str, str]:
    """Return the description of each argument of a function, also of those that another function describes."""
    described: dict[str, str] = {}
    if function.docstring is None:
        return described
    if shared := SHARED_ARGUMENTS.search(function.docstring.value):
        name = shared[1] if "." in shared[1] else f"{function.parent.name}.{shared[1]}"
        if name in functions:
            described |= _arguments(functions[name], functions)
        else:
            logger.warning("the docstring of %s names %s, which does not exist", function.path, name)
    for section in function.docstring.parse("google", warnings=False):
        if section.kind.value == "parameters":
            described |= {item.name.strip("*"): item.description for item in section.value}
    return described


def _compiled_docstring(obj: Object) -> str | None:
    """Return the docstring of a class, method or property in its compiled module; constants have none."""
    if obj.is_module:
        return None
    module = obj.module.path
    names = obj.path.removeprefix(f"{module}.").split(".")
    value = reduce(lambda place, name: getattr(place, name, None), names, importlib.import_module(module))
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.isdatadescriptor(value)):
        return None
    text = inspect.cleandoc(value.__doc__ or "")
    if re.match(rf"([\w.]+\.)?{names[-1]}\(|[\w.]+: ", text):  # Cython puts the signature in front
        text = text.partition("\n")[2]
    return text or None


def _guide_link(match: re.Match[str]) -> str:
    if not (ROOT / "docs" / f"{match[1]}.md").is_file():
        logger.warning("a docstring names %s, which does not exist", match[0])
    return f"[{match[0]}](../{match[1]}.md{match[2] or ''})"
