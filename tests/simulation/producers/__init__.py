"""Seeded simulation of global producers: the shipped `Sequencer`, gates and `Sender`, and producers that move between
clusters and send numbers again, over a network and owners that fail.

`python -m tests.simulation.producers --seeds 10000` runs many schedules, `--seed N` repeats one and prints what
happened.

| module | holds |
|---|---|
| place | a topic in one cluster: what is stored, and the owner, which crashes |
| link | the replication of a topic to another cluster |
| mover | a producer that moves |
| invariants | what must hold, by name |
| schedule | one run |
"""
