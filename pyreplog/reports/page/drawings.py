"""Kinds of drawings: bars by rank, over time, and over buckets; steps over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pyreplog.reports.page.cells import amount, moment, shown_as
from pyreplog.reports.page.names import names
from pyreplog.reports.page.svg import SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_WIDTH = 9.0
_RANKED = 20
_LABEL = 40
_BARS = 120
_FEWEST = 20
_STEPS_S = (60, 300, 900, 3600, 4 * 3600, 86400, 7 * 86400, 28 * 86400)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OTHERS = "all others"


class Plot(Protocol):
    """A kind of drawing, for some columns of a report."""

    @property
    def amount(self) -> str:
        """The column that determines the length of bars."""
        ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def size(self, table: pa.Table) -> tuple[float, float]:
        """Return (width, height) in inches. table: one with rows."""
        ...

    def draw(self, table: pa.Table, drawing: Drawing) -> Mapping[str, str]:
        """Draw, and return the tooltips of parts of the drawing by their gid."""
        ...


@dataclass(frozen=True)
class Ranked:
    """Horizontal bars of the largest amounts. by: columns that name a bar; amounts of the same name are added."""

    by: tuple[str, ...]
    amount: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.by, self.amount)

    def size(self, table: pa.Table) -> tuple[float, float]:
        return _WIDTH, 0.8 + 0.27 * min(len(_totals(table, self.by, self.amount)), _RANKED)

    def draw(self, table: pa.Table, drawing: Drawing) -> Mapping[str, str]:
        totals = _totals(table, self.by, self.amount)[:_RANKED]
        axes, show = drawing.add_subplot(), shown_as(self.amount)
        amounts = [total.amount for total in totals]
        bars = axes.barh(range(len(totals)), amounts, color=SERIES[0], height=0.75)
        tooltips = _set_tooltips(bars, [f"{total.name}: {show(total.amount)}" for total in totals], 0)
        axes.bar_label(bars, [show(value) for value in amounts], padding=4)
        axes.set_yticks(range(len(totals)), [_short(total.name) for total in totals])
        axes.invert_yaxis()
        axes.set_xlim(0, max(amounts) * 1.12 or 1)
        axes.set_xlabel(self.amount.replace("_", " "))
        if show is amount:
            _set_byte_ticks(axes.xaxis, max(amounts))
        axes.xaxis.set_major_formatter(lambda value, _: show(value))
        axes.grid(visible=False, axis="y")
        return tooltips


@dataclass(frozen=True)
class OverTime:
    """Bars over time, stacked by the columns in `by`.

    Times are summed up until there are few enough bars to tell them apart.
    """

    time: str
    amount: str
    by: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.time, self.amount, *self.by)

    def size(self, table: pa.Table) -> tuple[float, float]:
        return _WIDTH, 3.2

    def draw(self, table: pa.Table, drawing: Drawing) -> Mapping[str, str]:
        times = table[self.time].cast(pa.int64())
        step = self._step(times)
        step_us = pa.scalar(step * 1_000_000, pa.int64())
        begins = pc.multiply(pc.divide(times, step_us), pa.scalar(step, pa.int64()))
        series = _series(table.append_column("place", begins), self.by, self.amount)
        axes = drawing.add_subplot()
        tooltips = _stacked(
            axes, series, shown_as(self.amount),
            at=lambda begin: _EPOCH + timedelta(seconds=begin + step / 2),
            named=lambda begin: f"from {moment(begin * 1_000_000)}",
            width=timedelta(seconds=step * 0.9),
        )  # fmt: skip
        _widened(axes, timedelta(seconds=step * _FEWEST))
        axes.set_ylabel(f"{self.amount} per {_span(step)}")
        axes.grid(visible=False, axis="x")
        return tooltips

    def _step(self, times: pa.ChunkedArray) -> int:
        ends = pc.min_max(times).as_py()
        span_s = (ends["max"] - ends["min"]) / 1e6
        return next((step for step in _STEPS_S if span_s / step <= _BARS), math.ceil(span_s / _BARS))


@dataclass(frozen=True)
class Buckets:
    """Bars over buckets, stacked by the columns in `by`.

    Attributes:
        label: name of the axis.
        order: buckets in order; empty: they are numbers, and ascend.
    """

    bucket: str
    amount: str
    by: tuple[str, ...]
    label: str
    order: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.bucket, self.amount, *self.by)

    def size(self, table: pa.Table) -> tuple[float, float]:
        return _WIDTH, 3.2

    def draw(self, table: pa.Table, drawing: Drawing) -> Mapping[str, str]:
        order = list(self.order) or sorted(set(table[self.bucket].to_pylist()))
        labels = [name if isinstance(name, str) else shown_as(self.bucket)(name) for name in order]
        series = _series(table.append_column("place", table[self.bucket]), self.by, self.amount)
        axes = drawing.add_subplot()
        tooltips = _stacked(
            axes, series, shown_as(self.amount), at=order.index, named=lambda at: labels[order.index(at)], width=0.85
        )
        axes.set_xticks(range(len(order)), labels)
        axes.set_ylabel(self.amount)
        axes.set_xlabel(self.label)
        axes.grid(visible=False, axis="x")
        return tooltips


@dataclass(frozen=True)
class StepCurve:
    """A curve over time in steps: an amount that holds from one time until another. The times do not overlap."""

    since: str
    until: str
    amount: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.since, self.until, self.amount)

    def size(self, table: pa.Table) -> tuple[float, float]:
        return _WIDTH, 3.2

    def draw(self, table: pa.Table, drawing: Drawing) -> Mapping[str, str]:
        axes, show = drawing.add_subplot(), shown_as(self.amount)
        begins, ends = (table[name].cast(pa.int64()).to_pylist() for name in (self.since, self.until))
        amounts = table[self.amount].to_pylist()
        widths: Any = [timedelta(microseconds=end - begin) for begin, end in zip(begins, ends, strict=True)]
        at: Any = [_EPOCH + timedelta(microseconds=begin) for begin in begins]
        bars = axes.bar(at, amounts, widths, align="edge", color=SERIES[0], linewidth=0)
        texts = [
            f"{moment(begin)} to {moment(end)}: {show(value)}"
            for begin, end, value in zip(begins, ends, amounts, strict=True)
        ]
        last = max((place for place, value in enumerate(amounts) if value), default=len(amounts) - 1)
        margin = max(ends[last] - begins[0], 1_000_000) // 20  # the time after the last step may be long and empty
        bounds: Any = [_EPOCH + timedelta(microseconds=at_us) for at_us in (begins[0] - margin, ends[last] + margin)]
        axes.set_xlim(bounds)
        axes.set_ylabel(self.amount.replace("_", " "))
        axes.yaxis.set_major_formatter(lambda value, _: show(value))
        axes.grid(visible=False, axis="x")
        return _set_tooltips(bars, texts, 0)


class _Total(NamedTuple):
    name: str
    amount: float


def _totals(table: pa.Table, by: Sequence[str], of: str) -> list[_Total]:
    """Return amounts above 0 by name, the largest first."""
    summed = table.group_by(list(by)).aggregate([(of, "sum")])
    pairs = zip(names(summed, by), summed[f"{of}_sum"].to_pylist(), strict=True)
    return sorted((_Total(*pair) for pair in pairs if pair[1]), key=lambda total: (-total.amount, total.name))


def _series(table: pa.Table, by: Sequence[str], of: str) -> dict[str, dict[Any, float]]:
    """Return amounts by name and by `place`. The largest totals come first; the smallest are summed up."""
    ranked = [total.name for total in _totals(table, by, of)]
    kept = ranked if len(ranked) <= len(SERIES) else ranked[: len(SERIES) - 1]
    series: dict[str, dict[Any, float]] = {name: {} for name in kept}
    summed = table.group_by([*by, "place"]).aggregate([(of, "sum")]).sort_by("place")
    rows = zip(names(summed, by), summed["place"].to_pylist(), summed[f"{of}_sum"].to_pylist(), strict=True)
    for name, place, value in rows:
        if value:
            amounts = series.setdefault(name if name in kept else _OTHERS, {})
            amounts[place] = amounts.get(place, 0) + value
    return series


def _stacked(
    axes: Axes, series: Mapping[str, Mapping[Any, float]], show: Any, *, at: Any, named: Any, width: Any
) -> dict[str, str]:
    below, tooltips = dict[Any, float](), dict[str, str]()
    for color, (name, amounts) in zip(SERIES, series.items(), strict=False):
        bottom = [below.get(place, 0.0) for place in amounts]
        bars = axes.bar(
            [at(place) for place in amounts], list(amounts.values()), width, bottom, color=color, label=_short(name)
        )
        before = f"{name}, " if name else ""
        texts = [f"{before}{named(place)}: {show(value)}" for place, value in amounts.items()]
        tooltips |= _set_tooltips(bars, texts, len(tooltips))
        for place, value in amounts.items():
            below[place] = below.get(place, 0.0) + value
    if show is amount:
        _set_byte_ticks(axes.yaxis, max(below.values(), default=0.0))
    axes.yaxis.set_major_formatter(lambda value, _: show(value))
    if len(series) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return tooltips


def _set_byte_ticks(axis: Any, most: float) -> None:
    """Set ticks at multiples of a power of two."""
    step = 2 ** max(math.ceil(math.log2(max(most, 1) / 6)), 0)
    axis.set_ticks([place * step for place in range(int(most // step) + 1)])


def _widened(axes: Axes, least: timedelta) -> None:
    """Widen the axis to a least span of time, so that a few bars do not fill the whole width."""
    low, high = axes.get_xlim()
    missing = least / timedelta(days=1) - (high - low)  # matplotlib counts days
    if missing > 0:
        axes.set_xlim(low - missing / 2, high + missing / 2)


def _set_tooltips(bars: Iterable[Any], texts: Sequence[str], before: int) -> dict[str, str]:
    tooltips = dict[str, str]()
    for place, (bar, text) in enumerate(zip(bars, texts, strict=True), before):
        bar.set_gid(f"bar{place}")
        tooltips[f"bar{place}"] = text
    return tooltips


def _short(name: str) -> str:
    return name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…"


def _span(step_s: int) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if step_s % size == 0:
            count = step_s // size
            return name if count == 1 else f"{count} {name}s"
    return f"{step_s} s"
