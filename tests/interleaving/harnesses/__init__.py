"""The harnesses, by name."""

from __future__ import annotations

from tests.interleaving.harnesses import ha, ledgers, logs, machinery, publishing
from tests.interleaving.search import Harness

HARNESSES: dict[str, Harness] = {
    harness.name: harness for module in (machinery, publishing, ledgers, logs, ha) for harness in module.HARNESSES
}
