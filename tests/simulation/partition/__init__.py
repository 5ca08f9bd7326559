"""Seeded simulation of partitions: the shipped machines over logs, disks, a network and a metadata store that fail.

`python -m tests.simulation.partition --seeds 100000` runs many schedules, `--seed N` repeats one and prints what
happened.

| module | holds |
|---|---|
| disk | a replica's log, and what a crash leaves of it |
| store | the partition's key and the brokers' registrations, compared and set; controllers that sleep |
| brokers | brokers: they run the shipped leader and follower; crash anywhere |
| clients | idempotent producers |
| clocks | clocks of machines, whose wall time is set forward and back |
| transactions | their coordinator; transactional producers |
| network | messages that are late, lost, out of order, or come twice; links that are cut one way |
| faults | what goes wrong, and when |
| invariants | what must hold, by name |
| schedule | one run |
"""
