"""What the documents name is in the package, and a type checker sees what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pyreplog
from pyreplog import errors

DOCS = Path(__file__).parents[2] / "docs"
FOREIGN = {"BrokenPipeError", "ConnectionError", "KeyError", "OSError", "RuntimeError", "TypeError", "ValueError"}


def test_every_error_is_in_the_package() -> None:
    assert set(errors.__all__) <= set(pyreplog.__all__)
    assert all(getattr(pyreplog, name) is getattr(errors, name) for name in errors.__all__)


def test_every_error_that_a_document_names() -> None:
    named = {name for path in DOCS.rglob("*.md") for name in re.findall(r"`([A-Z][A-Za-z]+Error)`", path.read_text())}
    assert len(named) > 30
    assert named - set(pyreplog.__all__) - FOREIGN == set()


def test_a_type_checker_knows_which_names_there_are() -> None:
    mypy = pytest.importorskip("mypy.api")
    out, _, code = mypy.run(["--no-incremental", "--follow-imports=skip", "-c", "import pyreplog\npyreplog.NoSuchName"])
    shown = (out, code)
    source = Path(pyreplog.__file__).read_text()
    assert "if not TYPE_CHECKING" in source.partition("def __getattr__")[0][-200:], shown
