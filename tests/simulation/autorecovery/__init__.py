"""Seeded simulation of auto-recovery: the shipped machines over several ledgers, bookies that die, and writers.

`python -m tests.simulation.autorecovery --seeds 100000` runs many schedules, `--seed N` repeats one and prints what
happened. World, bookies, network, writers and recoverers are those of the simulation of ledgers.

| module | holds |
|---|---|
| ledgers | the life of one ledger: its metadata, its writer, what must hold of it |
| processes | auditors, workers, menders, collectors of surplus copies |
| schedule | one run |
"""
