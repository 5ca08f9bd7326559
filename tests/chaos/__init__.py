"""Chaos: real processes under kill -9, SIGSTOP and clocks that jump, and how long nobody could write.

`python -m tests.chaos [ledgers|topics|groups|partitions|transactions] --seconds 1200 --seed 1` runs one kind of
service, or each in turn: its processes, a client that writes all the time, and one fault after the other, drawn by the
seed. In the end everything that was acknowledged is read back, and the longest time without an acknowledgement is
compared with the bound that docs/guarantees.md states. One process at a time is disturbed, so a quorum is always there.

| module | what it is |
|---|---|
| `victims` | processes that are killed, stopped, resumed, started again, and whose clocks jump |
| `faults` | which fault comes when, and what was acknowledged meanwhile |
| `ledgers`, `topics`, `groups`, `partitions`, `transactions` | what is disturbed, and what is checked; of the last two, the whole history |
| `member` | a process that is a member of a replica group and appends while it is master |
"""
