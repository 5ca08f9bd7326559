"""Seeded simulation of geo-replication between three or four clusters: shipped senders and gates in a mesh, a ring, a
star, a chain, and in a mesh where all forward to all. Topics are trimmed when all targets have their messages, or without
a target that was detached, or that the policy did not name.

`python -m tests.simulation.regions --seeds 10000` runs many schedules, `--seed N` repeats one and prints what happened.
Its parts are those of `tests.simulation.replication`, which has one source and one target.

| module | holds |
|---|---|
| site | a cluster: its topic, which others replicate into, and the ways to its targets |
| schedule | one run |
"""
