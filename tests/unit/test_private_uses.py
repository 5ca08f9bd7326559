"""Tests use what is public: the number of uses of private attributes only goes down."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.private_uses import all_uses, private_names, uses

CEILING = 355
"""Uses of private attributes in tests. Lower it when there are fewer; never raise it: ask for a seam instead."""


def test_no_more_private_attributes_are_used_than_before() -> None:
    uses = all_uses()
    files = Counter(use.file for use in uses)
    assert len(uses) <= CEILING, f"use what is public, or give the class a documented seam: {files.most_common()}"


def test_uses_of_private_attributes_are_found(tmp_path: Path) -> None:
    package, source = tmp_path / "package", tmp_path / "test_sample.py"
    package.mkdir()
    (package / "a.py").write_text(
        "class A:\n    __slots__ = ('_slot',)\n    _constant = 1\n    _typed: int\n"
        "    def __init__(self): self._own, self.public = 1, 2\n    async def _method(self): pass\ndef _function(): pass\n"
    )
    (package / "b.pyx").write_text("cdef class B:\n    def _compiled(self):\n        self._field = 1\n")
    private = private_names(package)
    assert private == {"_slot", "_constant", "_typed", "_own", "_method", "_compiled", "_field"}
    source.write_text(
        "a._own.b._field = a._function(a._replace(), a.public)\n"
        "class T(A):\n    def f(self): self._own, cls._own, super()._method(), other._method()\n"
        "patch.setattr(a, '_slot', 1), patch.object(A, '_typed'), patch('package.a.A._constant'), get(a, 'the _own')\n"
    )
    assert [use.text for use in sorted(uses(source, private, tmp_path))] == [
        "a._own",
        "a._own.b._field",
        "other._method",
        "patch('package.a.A._constant')",
        "patch.object(A, '_typed')",
        "patch.setattr(a, '_slot', 1)",
    ]
