"""No module reads another object's private attributes across files: it is a method in the wrong file, or wants a public one.

The rules, for Python and for Cython, are those of `tests.private_reads`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.private_reads import cython_reads, python_reads

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pyreplog"

ALLOWED = {
    ("pyreplog/cli/shared/serving.py", "os._exit"): "it is public, and called so",
    (
        "pyreplog/metadata/zookeeper_session.py",
        "self._client._connection",
    ): "kazoo has the granted time-out nowhere else",
    ("pyreplog/metadata/zookeeper_session.py", "connection._connect"): "the same",
    (
        "pyreplog/_native/log/future.pyx",
        "wait._asyncio_future_blocking",
    ): "asyncio's protocol for what a task awaits has that name",
}
"""Private attributes of other libraries' objects that are read all the same, and why."""


def test_no_private_attribute_of_another_module_is_read() -> None:
    rows, known = set[tuple[str, str]](), 0
    for path in PACKAGE.rglob("*.py"):
        reads = python_reads(ROOT, PACKAGE, path)
        rows.update((path.relative_to(ROOT).as_posix(), read) for read in reads.found)
        known += reads.known
    for path in (*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")):
        rows.update((path.relative_to(ROOT).as_posix(), read) for read in cython_reads(path))
    assert rows == ALLOWED.keys(), rows ^ ALLOWED.keys()
    assert known > 50, "hardly any type was told: the search is broken"


OTHER = """
class Base:
    def __init__(self):
        self._inherited = 1

class Other(Base):
    _field: int

    def __init__(self):
        self._held = 1

    def copy(self) -> Other: ...
"""

FAMILY = """
class Own(Base):
    part: Other

    def __init__(self, other: Other | None, base: Base):
        self._own = self._held = self._field = 1
        self.other, self.base = other, base

    @property
    def last(self) -> Other: ...
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").write_text("from p.other import Other\n")
    (tmp_path / "p" / "other.pyi").write_text(OTHER)
    return tmp_path / "p"


@pytest.mark.parametrize(
    "body",
    [
        "def f(other: Other): return other._held",
        "def f(other: Other | None): return other._held",
        "def f(other: 'Other'): return other.copy()._field",
        "def f(own: Own): return own.part._held",
        "def f(own: Own): return own.other._held",
        "def f(own: Own): return own.last._inherited",
        "def f(own: Own):\n    kept = own.last\n    def g(): return kept._held",
        "def f(): return Other()._held",
        "def f(): return Other._field",
        "async def f(given):\n    found: Other = given\n    return found._held",
        "def f(unknown): return unknown._strange",
        "def f(unknown):\n    unknown._strange = 1",
    ],
)
def test_reads_of_others_are_found_whatever_the_module_has_itself(package: Path, body: str) -> None:
    source = package / "own.py"
    source.write_text(f"from p import Other\nfrom p.other import Base\n{FAMILY}\n{body}\n")
    assert len(python_reads(package.parent, package, source).found) == 1


@pytest.mark.parametrize(
    "body",
    [
        "def f(own: Own): return own._own, own._inherited, own.base._inherited",
        "def f(base: Base): return base._inherited",
        "def f(unknown): return unknown._held, unknown._inherited, unknown._replace(a=1), unknown.__dict__",
        "class Derived(Own):\n    def f(self, other): return self._anything, super()._more, other._own",
    ],
)
def test_the_own_is_not_found(package: Path, body: str) -> None:
    source = package / "own.py"
    source.write_text(f"from p import Other\nfrom p.other import Base\n{FAMILY}\n{body}\n")
    assert not python_reads(package.parent, package, source).found


def test_reads_in_cython_are_found(tmp_path: Path) -> None:
    source = tmp_path / "sample.pyx"
    source.write_text(
        "from pyreplog._native.a cimport B\n\n\n"
        'cdef class A:\n    """It reads `log._documented`."""\n    cdef int _a  # not log._commented\n\n'
        "    def f(self, B log, other):\n"
        "        self._a = <int>self._b + super()._c + self.__d + log.public\n"
        "        (<B>log)._cast, log.part._part, other[0]._item, other()._called, <A>other._named, self.log._own\n"
        "        raise ValueError(f'{log._formatted} and log._text', 'log._string')\n"
    )
    assert list(cython_reads(source)) == [
        ")._cast", "log.part._part", "]._item", ")._called", "other._named", "self.log._own", "log._formatted",
    ]  # fmt: skip
