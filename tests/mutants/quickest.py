"""A plugin for pytest: the quickest tests come first. `-p tests.mutants.quickest`.

MUTANTS_TIMES names a file of JSON: seconds by "module::test". MUTANTS_SECONDS: tests beyond so many seconds in all are
left out; 0: none is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

UNKNOWN_S = 1.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds: dict[str, float] = json.loads(Path(os.environ["MUTANTS_TIMES"]).read_text())
    limit = float(os.environ["MUTANTS_SECONDS"])

    def time_of(item: pytest.Item) -> float:
        return seconds.get(f"{item.path.stem}::{item.name}", UNKNOWN_S)

    items.sort(key=time_of)
    total = 0.0
    for place, item in enumerate(items):
        total += time_of(item)
        if limit and place and total > limit:
            config.hook.pytest_deselected(items=items[place:])
            del items[place:]
            return
