"""The options of a report's reads, for both engines."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from pyreplog.errors import ConfigError
from pyreplog.reports.gathering import gather
from pyreplog.reports.report import Report, ReportRead
from pyreplog.reports.snapshot import Snapshot
from pyreplog.tables.options import EXCLUSIVE, OF_CLUSTERS, ReadOptions

_OURS = ("columns", "includeHeaders", "includeMetadata", "view", "viewOptions")
"""Options of the Spark source that a report sets itself."""

_PLACES = {"path", "paths", "cluster"}
"""Options that name a source; each replaces the others."""


def options_of(source: str | Path | Mapping[str, object]) -> dict[str, str]:
    """Return options of the Spark source as texts. source: a path, or options."""
    if isinstance(source, str | Path):
        return {"path": str(source)}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in source.items()}


def snapshot_for(report: Report, source: Mapping[str, str]) -> Snapshot:
    """Return a snapshot of now, with the facts that the report needs.

    Raises ConfigError for unknown or invalid options, and the errors of `gather`.
    """
    now = time.time_ns() // 1000
    return gather(ReadOptions.of(source), now) if report.needs_snapshot else Snapshot(as_of_us=now)


def reads_of(report: Report, source: Mapping[str, str], snapshot: Snapshot) -> list[tuple[ReportRead, dict[str, str]]]:
    """Return the reads of a report, each with its options for the Spark source.

    Raises ConfigError for an unknown or invalid option, and for one that reports do not take.
    """
    names = {name.lower() for name in source}
    for name in _OURS:
        if name.lower() in names:
            known = "those of the Spark source without " + ", ".join(_OURS)
            raise ConfigError(f"option {name}: a report reads what it needs; expected {known}")
    options = ReadOptions.of(source)
    if options.mode == "PERMISSIVE":
        raise ConfigError(
            "mode: reports read only intact records; expected FAILFAST or DROPMALFORMED, found PERMISSIVE"
        )
    view = {"view": report.name, "viewOptions": json.dumps(report.parameters)}
    return [
        (read, {**_without(source, read.options), **read.options, **view}) for read in report.reads(options, snapshot)
    ]


def _without(source: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return the options that others neither replace nor exclude. Spark ignores the case of option names."""
    replaced = {name.lower() for name in others}
    if replaced & _PLACES:
        if "cluster" not in replaced:
            replaced |= {name.lower() for name in OF_CLUSTERS}
        replaced |= _PLACES
    for group in EXCLUSIVE:
        names = {name.lower() for name in group}
        if names & replaced:
            replaced |= names
    return {name: value for name, value in source.items() if name.lower() not in replaced}
