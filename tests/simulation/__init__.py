"""Seeded simulation of ledgers: the shipped state machines, bookies among them, over a network that loses things.

`python -m tests.simulation --seeds 100000` runs many schedules, `--seed N` repeats one and prints what happened.

| module | holds |
|---|---|
| world | time, chance, what happened |
| disk | a bookie's log, of which a crash takes what was not synced |
| bookies | storage nodes that crash, stop, fill up, or come back empty |
| network | connections: in order while they live, cut anywhere |
| store | the metadata store: compare-and-set whose answers get lost |
| clients | what runs machines: the writer, recoverers, readers |
| faults | what goes wrong, and when |
| invariants | what must hold, by name |
| schedule | one run |
| runner | many |
"""
