"""A plugin of pytest that writes down which error codes a test has met: with which of them a value was compared and was
equal. `python -m pytest -p tests.kafka.error_code_recorder --error-codes FILE`."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyreplog.partition.protocol.error_codes import ErrorCode


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--error-codes", metavar="FILE", type=Path, help="where to write a line of JSON for each test")


class Recorder:
    """Codes that were met since the last call of `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._met: set[str] = set()

    def add(self, code: ErrorCode) -> None:
        with self._lock:
            self._met.add(code.name)

    def take(self) -> set[str]:
        with self._lock:
            met, self._met = self._met, set()
        return met


RECORDER = Recorder()


def _equal(code: ErrorCode, other: object) -> bool:
    is_equal = int.__eq__(code, other)  # type: ignore[operator]
    if is_equal is True:
        RECORDER.add(code)
    return is_equal


def pytest_assertion_pass(orig: str, expl: str) -> None:
    """Of `is`, and of tuples and the like, whose members are not compared if they are identical: both sides, without what
    they are made of."""
    if re.search(r"!=|\bnot\b", orig.replace(" is not None", "")) is None:
        sides = [line for line in expl.splitlines() if not line.lstrip().startswith("+")]
        for name in re.findall(r"<ErrorCode\.(\w+): -?\d+>", "\n".join(sides)):
            RECORDER.add(ErrorCode[name])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    RECORDER.take()
    result = yield
    path: Path | None = item.config.getoption("--error-codes")
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps({"test": item.nodeid.partition("[")[0], "codes": sorted(RECORDER.take())}) + "\n")
    return result


def pytest_configure() -> None:
    ErrorCode.__eq__ = _equal  # type: ignore[method-assign, assignment]
    ErrorCode.__hash__ = int.__hash__  # type: ignore[method-assign, assignment]
