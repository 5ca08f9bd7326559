"""What a benchmark found: figures of both sides, their ratio, and the goal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["s", "/s", "B/s", "B", "share", "count"]
Durability = Literal["appended", "synced", "reading"]
"""What holds when a call has returned. appended: the bytes survive the process; synced: the machine, too."""


@dataclass(frozen=True)
class Figure:
    """A measured median. size: bytes of one entry, where a rate is also one of bytes."""

    name: str
    value: float
    unit: Unit
    durability: Durability
    size: int = 0

    def __str__(self) -> str:
        if self.unit == "s":
            text = _scaled(self.value * 1e9, ("ns", "us", "ms", "s"))
            return f"{text} ({_rate(self.size / self.value)}B/s)" if self.size else text
        if self.unit == "share":
            return f"{self.value:.3%}"
        if self.unit == "count":
            return f"{self.value:,.0f}"
        if self.unit == "B":
            return f"{_rate(self.value)}B"
        text = f"{_rate(self.value)}{'B' if self.unit == 'B/s' else ''}/s"
        return f"{text} ({_rate(self.size * self.value)}B/s)" if self.size else text


@dataclass(frozen=True)
class Goal:
    """What to reach: the ratio of ours to the other side, or (`absolute`) the value of ours."""

    bound: Literal["at most", "at least"]
    limit: float
    absolute: bool = False

    def met_by(self, found: float) -> bool:
        return found <= self.limit if self.bound == "at most" else found >= self.limit


@dataclass(frozen=True)
class Comparison:
    """Two sides of the same work, with the same durability."""

    work: str
    ours: Figure
    other: Figure
    goal: Goal | None
    verified: str
    """What was read back and compared with what was written."""

    def __post_init__(self) -> None:
        if self.ours.durability != self.other.durability:
            raise ValueError(f"{self.work}: {self.ours.durability} beside {self.other.durability} compares nothing")

    @property
    def ratio(self) -> float | None:
        """Ours to the other side's; None beside nothing at all."""
        return self.ours.value / self.other.value if self.other.value else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None when there is none."""
        found = self.ours.value if self.goal is not None and self.goal.absolute else self.ratio
        return None if self.goal is None or found is None else self.goal.met_by(found)


@dataclass(frozen=True)
class Table:
    """Figures beside the comparisons: text, first column names the rows."""

    title: str
    headers: list[str]
    rows: list[list[str]]


@dataclass
class Section:
    """One row of the goals, measured. others: share of the cores that other processes used meanwhile."""

    name: str
    title: str
    comparisons: list[Comparison] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    others: float = 0.0


def _scaled(nanoseconds: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if nanoseconds < 1000:
            return f"{_digits(nanoseconds)} {unit}"
        nanoseconds /= 1000
    return f"{_digits(nanoseconds)} {units[-1]}"


def _rate(value: float) -> str:
    for prefix in ("", "k", "M"):
        if value < 1000:
            return f"{_digits(value)} {prefix}"
        value /= 1000
    return f"{_digits(value)} G"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or not value else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
