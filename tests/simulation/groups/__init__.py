"""Seeded simulation of consumer groups: the shipped coordinator on brokers that fail, and members over a network that
loses and delays requests.

`python -m tests.simulation.groups --seeds 20000` runs many schedules, `--seed N` repeats one and prints what happened.

| module | holds |
|---|---|
| log | the partition of `__consumer_offsets`, its leaders, and what an election leaves of its tail |
| brokers | brokers with a coordinator each; they crash, and learn late that they lead or do not |
| members | members: dynamic and static ones; consumers outside the group protocol; transactional producers |
| consumers | members of consumer groups (KIP-848) |
| invariants | what must hold, by name |
| schedule | one run |
"""
