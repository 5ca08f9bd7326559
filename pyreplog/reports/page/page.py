"""Renders reports as a page: one HTML file that contains all its resources, and does not use the network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pyreplog.errors import MissingExtraError
from pyreplog.reports.outcome import Outcome
from pyreplog.reports.page.cells import Cell, cells, is_number, printable, python_values
from pyreplog.reports.page.plots import plots
from pyreplog.reports.page.summary import ORDER, questions
from pyreplog.reports.report import Report

if TYPE_CHECKING:
    from jinja2 import Environment

ROWS = 500
"""Rows of a report in the page, at most."""

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class About:
    """Title, facts and footer of a page of reports.

    Attributes:
        title: title of the page.
        facts: names and values that describe what was read, and how.
        footer: text at the end.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    footer: str


class _Column(NamedTuple):
    name: str
    meaning: str
    right: bool


@dataclass(frozen=True)
class _Part:
    """One report in the page.

    Attributes:
        warnings: unknown parts.
        plots: SVG elements.
        more: text about rows that were left out.
    """

    name: str
    title: str
    definition: str
    count: str
    error: str
    warnings: list[str]
    columns: tuple[_Column, ...]
    rows: list[tuple[Cell, ...]]
    plots: list[str]
    more: str


def page(about: About, outcomes: Iterable[Outcome]) -> str:
    """Render reports as one HTML file that needs no network.

    All text that comes from data is escaped.

    Args:
        about: title, facts and footer of the page.
        outcomes: outcomes of reports, from `outcomes`.

    Returns:
        The page, as text.

    Raises:
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    template = _environment().get_template("page.html")
    places = {name: place for place, name in enumerate(ORDER)}
    in_order = sorted(
        outcomes, key=lambda outcome: places.get(outcome.report.name, len(places))
    )  # reports that users wrote come last
    script = (_HERE / "page.js").read_text()
    return template.render(
        about=About(printable(about.title), [(name, printable(value)) for name, value in about.facts], about.footer),
        questions=questions({outcome.report.name: outcome for outcome in in_order}),
        parts=[_part(outcome) for outcome in in_order if not outcome.left_out],
        left_out=[(outcome.report, printable(outcome.left_out)) for outcome in in_order if outcome.left_out],
        style=(_HERE / "page.css").read_text(),
        script=script,
        script_hash=_hash(script),
    )


def check_extra() -> None:
    """Raise MissingExtraError if a package that a page needs is not installed."""
    _environment()
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise _missing(error) from error


def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise _missing(error) from error
    return Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _missing(error: ImportError) -> MissingExtraError:
    return MissingExtraError(f"report pages need jinja2 and matplotlib: pip install 'pyreplog[report]' ({error})")


def _hash(script: str) -> str:
    """Return the hash of a script as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _part(outcome: Outcome) -> _Part:
    report, table = outcome.report, outcome.table
    rows = 0 if table is None else len(table)
    return _Part(
        name=report.name,
        title=report.title,
        definition=report.definition,
        count="failed" if table is None else "1 row" if rows == 1 else f"{rows:,} rows",
        error=printable(outcome.error),
        warnings=[printable(warning) for warning in outcome.warnings],
        columns=tuple(_Column(figure.name, figure.meaning, is_number(figure)) for figure in report.figures),
        rows=[] if table is None else _rows(report, table.slice(0, ROWS)),
        plots=[] if table is None else plots(report, table),
        more=f"The first {ROWS:,} of {rows:,} rows." if rows > ROWS else "",
    )


def _rows(report: type[Report], table: pa.Table) -> list[tuple[Cell, ...]]:
    columns = [cells(figure, python_values(table[figure.name])) for figure in report.figures]
    return list(zip(*columns, strict=True))
