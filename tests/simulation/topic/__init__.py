"""Seeded simulation of topics: the shipped owners, subscriptions and consumers over bookies and metadata that fail.

`python -m tests.simulation.topic --seeds 10000` runs many schedules, `--seed N` repeats one and prints what happened.

| module | holds |
|---|---|
| loop | simulated time, in which several processes wait |
| metadata | each process' way to the metadata store: calls get lost, leases end unnoticed |
| runtime | what a process' cluster is built on: requests to bookies, timers, jobs |
| processes | processes that want to own the topic, publish and consume; killed or stopped anywhere |
| clients | a client of whoever owns the topic, over connections that break before and after any message |
| alarm | a timer |
| faults | what goes wrong, and when |
| invariants | what must hold, by name |
| schedule | one run |
"""
