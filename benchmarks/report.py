"""Sections as Markdown, for the terminal and for docs/, and as plain data for JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.result import Comparison, Section

OTHERS_MAX = 0.1
_HEADERS = ["work", "pyreplog", "other side", "ratio", "goal", "met", "durability, both", "read back"]


def header(machine: dict[str, str]) -> str:
    """What was measured, on what."""
    lines = [f"- {name}: {text}" for name, text in machine.items()]
    told = "Medians of interleaved rounds within one run; only the ratios mean anything."
    return "\n".join(["# Benchmarks", "", told, "", *lines])


def markdown(section: Section) -> str:
    """One row of the goals."""
    parts = [f"## {section.title}", table(_HEADERS, [_cells(found) for found in section.comparisons])]
    for extra in section.tables:
        parts += [f"### {extra.title}", table(extra.headers, extra.rows)]
    parts += section.notes
    if section.others > OTHERS_MAX:
        parts.append(f"**Disturbed**: other processes used {section.others:.0%} of the cores; measure again.")
    parts.append(f"(`{section.name}`, {section.seconds:.0f} s; other processes used {section.others:.1%} of the cores)")
    return "\n\n".join(parts)


def data(section: Section) -> dict[str, Any]:
    """One row of the goals, for JSON."""
    found = dataclasses.asdict(section)
    for plain, comparison in zip(found["comparisons"], section.comparisons, strict=True):
        plain |= {"ratio": comparison.ratio, "met": comparison.met}
    return found


def table(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table that also reads well as text."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(headers), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)])


def _cells(found: Comparison) -> list[str]:
    goal, met = "", ""
    if found.goal is not None:
        limit = f"{found.goal.limit:g}"
        if found.goal.absolute and found.ours.unit == "share":
            limit = f"{found.goal.limit:.1%}"
        elif found.goal.absolute:
            limit = str(dataclasses.replace(found.ours, value=found.goal.limit))
        goal = f"{found.goal.bound} {limit}"
        met = "yes" if found.met else "**no**"
    return [
        found.work,
        f"{found.ours.name}: {found.ours}",
        f"{found.other.name}: {found.other}",
        "" if found.ratio is None else f"{found.ratio:.2f}",
        goal,
        met,
        found.ours.durability,
        found.verified,
    ]
