"""What a report is asked of, for both engines: options as the user gives them, and as tasks get them."""

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
"""Each of them replaces the others."""


def options_of(given: str | Path | Mapping[str, object]) -> dict[str, str]:
    """Options as texts. given: a path, or options of the Spark source."""
    if isinstance(given, str | Path):
        return {"path": str(given)}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def snapshot_for(report: Report, given: Mapping[str, str]) -> Snapshot:
    """What is known now, as far as this report says any of it. Errors: as of `gather`; ConfigError."""
    now = time.time_ns() // 1000
    return gather(ReadOptions.of(given), now) if report.needs_facts else Snapshot(as_of_us=now)


def reads_of(report: Report, given: Mapping[str, str], snapshot: Snapshot) -> list[tuple[ReportRead, dict[str, str]]]:
    """What a report reads, with the options of each read as the Spark source takes them.

    Errors: ConfigError: an option is unknown, has no such value, or is not for reports.
    """
    names = {name.lower() for name in given}
    for name in _OURS:
        if name.lower() in names:
            known = "those of the Spark source without " + ", ".join(_OURS)
            raise ConfigError(f"option {name}: a report reads what it needs; expected {known}")
    options = ReadOptions.of(given)
    if options.mode == "PERMISSIVE":
        raise ConfigError("mode: reports are of records; expected FAILFAST or DROPMALFORMED, found PERMISSIVE")
    view = {"view": report.name, "viewOptions": json.dumps(report.parameters)}
    return [(one, {**_without(given, one.options), **one.options, **view}) for one in report.reads(options, snapshot)]


def _without(given: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Those that others do not replace, nor exclude: Spark does not tell names apart by case."""
    replaced = {name.lower() for name in others}
    if replaced & _PLACES:
        if "cluster" not in replaced:
            replaced |= {name.lower() for name in OF_CLUSTERS}
        replaced |= _PLACES
    for group in EXCLUSIVE:
        names = {name.lower() for name in group}
        if names & replaced:
            replaced |= names
    return {name: value for name, value in given.items() if name.lower() not in replaced}
