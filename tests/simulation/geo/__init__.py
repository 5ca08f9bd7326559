"""Seeded simulation of replicated subscriptions: the shipped machines in three or four clusters, and what goes wrong between them.

`python -m tests.simulation.geo --seeds 1000` runs many schedules, `--seed N` repeats one and prints what happened.

| module | holds |
|---|---|
| sites | a cluster: its topic, journal, cursors and consumers, around a `SubscriptionExchange` |
| links | the connections of two clusters: messages of the topic on one, subscriptions on the other |
| truth | what consumers and operators did, and what must hold of it everywhere |
| faults | what goes wrong, and what operators do |
| schedule | one run |
| campaign | many runs, and in how many of them readiness was compared with a fail-over |
| crashes | one schedule again and again, with a crash at each of its writes |
| pip33 | the algorithm of Pulsar's PIP-33 as a reference |
| scenarios | one story, told to PIP-33 and to the shipped machines |
| failovers | the table of what fail-overs lose and repeat with both: stories, and random schedules |
"""
