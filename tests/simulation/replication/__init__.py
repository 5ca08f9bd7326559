"""Seeded simulation of geo-replication: the shipped `Sender`, over a network and processes that fail.

`python -m tests.simulation.replication --seeds 10000` runs many schedules, `--seed N` repeats one and prints what
happened.

| module | holds |
|---|---|
| target | a topic of the target cluster: the gate's rules, entries on their way, crashes |
| network | connections that are late, are cut, or lose what one side says |
| source | the topic here, its log and its durable cursor, and a process with a Sender |
| invariants | what must hold, by name |
| schedule | one run |
"""
