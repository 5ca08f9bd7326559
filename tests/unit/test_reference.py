"""The API reference has an entry for every public name, and every error with what a program can do about it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pyreplog import ReplogError

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)
PACKAGES = [
    "pyreplog",
    "pyreplog.ha",
    "pyreplog.ha.relay",
    "pyreplog.rocketmq",
    "pyreplog.metadata",
    "pyreplog.reports",
]
"""Packages whose `__all__` is public."""


def site() -> ModuleType:
    """What makes the site out of the pages."""
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / ".ci" / "docs_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = site()


def text_of(page: Path) -> str:
    return SITE.ERRORS.sub(lambda marker: SITE.errors_of(marker[1]), page.read_text())


def entries() -> list[str]:
    return [entry for page in PAGES for entry in ENTRY.findall(text_of(page))]


def resolve(name: str) -> object:
    """Import what an entry names."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise LookupError(name)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_entry(package: str) -> None:
    names = {f"{package}.{name}" for name in importlib.import_module(package).__all__ if not name.startswith("__")}
    assert len(names) >= 3 and not names - {*entries()}


def test_every_metadata_store_has_an_entry() -> None:
    shown = [resolve(entry) for entry in entries() if entry.startswith("pyreplog.metadata.")]
    stores = {
        value
        for name in ("memory", "sqlite", "zookeeper")
        for value in vars(importlib.import_module(f"pyreplog.metadata.{name}")).values()
        if inspect.isclass(value) and value.__name__.endswith("Store") and value.__module__.endswith(name)
    }
    assert len(stores) == 3 and not stores - {value for value in shown if inspect.isclass(value)}


def test_entries_exist_and_stand_once() -> None:
    names = entries()
    values = [resolve(name) for name in names]
    assert len(names) > 150 and len({*names}) == len(names)
    assert len({id(value) for value in values}) == len(values), "one thing has two entries"


def errors(below: type[ReplogError] = ReplogError) -> Iterator[type[ReplogError]]:
    yield below
    for error in below.__subclasses__():
        yield from errors(error)


def test_error_reference_lists_retry_and_exit_code_of_every_error() -> None:
    text = text_of(ROOT / "docs" / "reference" / "errors.md")
    rows = re.findall(r"^\| \[`(\w+)`\].* \| (yes|no) \| (\d+) \|$", text, re.MULTILINE)
    public = {error for error in errors() if error.__module__.startswith("pyreplog.errors.")}
    assert len(rows) == len(public) > 90
    assert {*rows} == {(error.__name__, "yes" if error.retriable else "no", str(error.exit_code)) for error in public}


def test_every_page_is_in_the_navigation_and_on_the_first_page() -> None:
    navigation, overview = (ROOT / "mkdocs.yml").read_text(), (ROOT / "docs" / "reference" / "index.md").read_text()
    for page in PAGES:
        assert f" reference/{page.name}\n" in navigation
        assert page.name == "index.md" or f"]({page.name})" in overview


def test_guides_that_docstrings_name_exist() -> None:
    missing = [
        f"{path}: {match[0]}"
        for path in (ROOT / "pyreplog").rglob("*.py*")
        if path.suffix in (".py", ".pyx")
        for match in SITE.GUIDE.finditer(path.read_text())
        if not (ROOT / "docs" / f"{match[1]}.md").is_file()
    ]
    assert not missing


def test_links_of_pages_outside_lead_to_pages() -> None:
    assert SITE._page_of(ROOT, "docs/log.md") == "log.md"
    assert SITE._page_of(ROOT / "docs", "../pyreplog/_native/FORMAT.md") == "FORMAT.md"
    assert SITE._page_of(ROOT / "docs" / "reference", "../log.md") == "log.md"
    assert SITE._page_of(ROOT, "examples") == "examples.md"
