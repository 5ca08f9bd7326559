"""The tables of docs/spark.md: every option, column and report that there is, by name, type and default; and no other."""

from __future__ import annotations

import re

import pytest

from pyreplog.errors import ConfigError
from pyreplog.reports.catalogue import REPORTS
from pyreplog.spark.stream.options import StreamOptions
from pyreplog.spark.write.columns import TYPES
from pyreplog.spark.write.options import WriteOptions
from pyreplog.tables.options import OF_STREAMS, ReadOptions
from pyreplog.tables.schema import known_columns
from tests.guides import ROOT
from tests.spark.reading import options_of

GUIDE = (ROOT / "docs" / "spark.md").read_text()
IN_WORDS = {"", "$PYREPLOG_SECRET", "empty", "all", "the first seven", "true when values are read"}
"""Defaults that are no text which the option takes."""

Row = tuple[str, str]


def table(heading: str, first: str) -> list[Row]:
    """(name, second cell) of each row of a table below a heading, told by its first column's."""
    text = GUIDE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = text.split(f"\n| {first} |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:]] for line in lines]
    return [row for cells in rows for row in each(cells[0], cells[1])]


def each(names: str, second: str) -> list[Row]:
    """A row of several names has as many second cells, or one for all."""
    split = re.split(", (?:or )?", names)
    others = re.split(r", (?![^<]*>)", second)
    return list(zip(split, others if len(others) == len(split) > 1 else [second] * len(split), strict=True))


def as_spark(kind: str) -> str:
    """A type as Spark writes it."""
    return kind.replace(": ", ":").replace(", ", ",")


def known(of: type[ReadOptions | WriteOptions], said: str) -> set[str]:
    """The options that an error tells of."""
    with pytest.raises(ConfigError) as caught:
        of.of({"none of them": "1"})
    match = re.search(f"{said} ([^;]*)", str(caught.value))
    assert match is not None
    return set(match[1].split(", "))


def test_the_guide_lists_every_read_option() -> None:
    rows = table("Options", "option")
    assert len({name for name, _ in rows}) == len(rows)
    assert {name for name, _ in rows} == known(ReadOptions, "there are")
    plain, checked = ReadOptions.of({"path": "a"}).limited(to_values=True), 0
    for name, default in rows:
        if default not in IN_WORDS:
            checked += 1
            assert ReadOptions.of({"path": "a", name: default}).limited(to_values=True) == plain, name
    assert checked >= 12


def test_the_guide_lists_every_stream_option() -> None:
    names = {name for name, _ in table("Streaming", "option")}
    assert set(OF_STREAMS) < names
    values = {"failOnDataLoss": "false", "isolation": "read_committed"}
    for name in names - {"subscription"}:
        StreamOptions.of({"path": "a", name: values.get(name, "5")})
    assert StreamOptions.of({"path": "a", "topics": "t", "subscription": "s"}).subscription == "s"
    assert names - set(OF_STREAMS) < known(ReadOptions, "there are")


def test_the_guide_lists_every_write_option() -> None:
    assert {name for name, _ in table("Writing", "option")} == known(WriteOptions, "there are")


def test_the_guide_lists_every_column() -> None:
    permissive = known_columns(options_of("a", mode="PERMISSIVE"))
    assert [(name, as_spark(kind)) for name, kind in table("Columns", "column")] == [*permissive]


def test_the_guide_lists_every_written_column() -> None:
    assert {name: tuple(as_spark(kind).split(" or ")) for name, kind in table("Writing", "column")} == TYPES


def test_the_guide_lists_every_report() -> None:
    names = [name for name, _ in table("Reports", "report")]
    assert sorted(names) == sorted(REPORTS)
    readme = (ROOT / "README.md").read_text()
    assert len(names) == 30 and "one page of 30 reports" in readme
