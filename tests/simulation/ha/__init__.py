"""Seeded simulation of replica groups: the shipped machines over logs, disks and connections that fail.

`python -m tests.simulation.ha --seeds 100000` runs many schedules, `--seed N` repeats one and prints what happened.

| module | holds |
|---|---|
| disk | what a crash leaves of a node |
| nodes | nodes: they run the shipped master, replica, election; crash anywhere |
| network | connections: in order while they live, cut anywhere; requests that get lost and come twice |
| faults | what goes wrong, and when |
| invariants | what must hold, by name |
| schedule | one run |
"""
