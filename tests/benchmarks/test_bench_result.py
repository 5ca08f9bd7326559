"""Figures, ratios and goals."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import machine, report
from benchmarks.result import Comparison, Figure, Goal, Section, Table, Unit


def comparison(ours: float, other: float, goal: Goal | None) -> Comparison:
    return Comparison(
        "append", Figure("ours", ours, "s", "appended"), Figure("bare", other, "s", "appended"), goal, "3 entries"
    )


def test_sides_of_unequal_durability_are_refused() -> None:
    with pytest.raises(ValueError, match="appended beside synced"):
        Comparison("append", Figure("a", 1, "s", "appended"), Figure("b", 1, "s", "synced"), None, "")


@pytest.mark.parametrize(
    ("ours", "goal", "met"),
    [
        (3.0, Goal("at most", 1.5), True),
        (3.2, Goal("at most", 1.5), False),
        (3.0, Goal("at least", 1.5), True),
        (2.8, Goal("at least", 1.5), False),
        (2.8, Goal("at most", 3.0, absolute=True), True),
        (3.1, Goal("at most", 3.0, absolute=True), False),
        (3.1, None, None),
    ],
)
def test_a_ratio_meets_its_goal_or_misses_it(ours: float, goal: Goal | None, met: bool | None) -> None:
    assert comparison(ours, 2.0, goal).met is met


def test_nothing_on_the_other_side_has_no_ratio() -> None:
    actual_comparison = comparison(0.001, 0.0, Goal("at most", 0.005, absolute=True))
    assert actual_comparison.ratio is None
    assert actual_comparison.met is True
    assert comparison(0.001, 0.0, Goal("at most", 2)).met is None


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure("", 42.7e-9, "s", "appended"), "42.7 ns"),
        (Figure("", 50e-9, "s", "appended", 100), "50.0 ns (2.00 GB/s)"),
        (Figure("", 0.0123, "s", "appended"), "12.3 ms"),
        (Figure("", 9574, "/s", "synced"), "9.57 k/s"),
        (Figure("", 23.9e6, "/s", "appended", 100), "23.9 M/s (2.39 GB/s)"),
        (Figure("", 3.097e9, "B/s", "synced"), "3.10 GB/s"),
        (Figure("", 131072, "B", "appended"), "131 kB"),
        (Figure("", 0, "B", "synced"), "0 B"),
        (Figure("", 12_345, "count", "synced"), "12,345"),
        (Figure("", 0.0003, "share", "reading"), "0.030%"),
    ],
)
def test_figures_are_printed_with_fitting_units(figure: Figure, text: str) -> None:
    assert str(figure) == text


@pytest.mark.parametrize(
    ("unit", "limit", "text"),
    [("share", 0.005, "at most 0.5%"), ("B", 64, "at most 64.0 B"), ("count", 37, "at most 37")],
)
def test_absolute_goals_have_the_unit_of_their_figure(unit: Unit, limit: float, text: str) -> None:
    ours, other = (Figure(name, 0, unit, "synced") for name in ("ours", "other"))
    found = Comparison("idle", ours, other, Goal("at most", limit, absolute=True), "3 entries")
    row = report.markdown(Section("idle", "Idle", [found])).splitlines()[4]
    assert [cell.strip() for cell in row.split("|")[5:7]] == [text, "yes"]


def test_a_section_is_written_as_markdown_tables() -> None:
    section = Section("append", "Appends", [comparison(3.0, 2.0, Goal("at most", 1.2))], notes=["A note."], others=0.3)
    section.tables.append(Table("State", ["", "bytes"], [["ours", "1"]]))
    lines = report.markdown(section).splitlines()
    assert lines[0] == "## Appends"
    assert [cell.strip() for cell in lines[4].split("|")[1:-1]] == [
        "append", "ours: 3.00 s", "bare: 2.00 s", "1.50", "at most 1.2", "**no**", "appended", "3 entries",
    ]  # fmt: skip
    assert "### State" in lines
    assert "A note." in lines
    assert any(line.startswith("**Disturbed**: other processes used 30%") for line in lines)
    assert len({len(line) for line in lines[2:5]}) == 1, "columns line up"


def test_data_holds_ratio_and_goal() -> None:
    actual_comparison = report.data(Section("append", "Appends", [comparison(3.0, 2.0, Goal("at most", 1.2))]))[
        "comparisons"
    ][0]
    assert (actual_comparison["ratio"], actual_comparison["met"], actual_comparison["goal"]["limit"]) == (
        1.5,
        False,
        1.2,
    )


def test_header_names_what_was_measured_on(tmp_path: Path) -> None:
    description = machine.describe(tmp_path)
    assert description["file system"].split()[1] == "on"
    assert "-O3" in description["compile flags"]
    assert "kernel " in description["pyreplog"]
    text = report.header(description)
    assert all(name in text for name in ("machine", "kernel", "versions", "compiler"))
