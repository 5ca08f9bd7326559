"""Auto-recovery under kill -9: real processes of auditors, workers, bookies and writers, and a checker.

`python -m tests.chaos.autorecovery --seeds 1:20` runs these seeds, one after the other. In each, bookies lose their
disks, are away, or are drained, and who makes their copies again is killed or stopped in the middle: auditor, worker,
the bookie that is read from, the one that is written to. ZooKeeper is stopped or restarted. Writers append all the
time. In the end every entry that was acknowledged is read from every bookie that the metadata name for it. One disk at
a time is lost: the ack quorum is two.

| module | what it is |
|---|---|
| `kills` | one run: processes, and what happens to them |
| `writing` | the writers, in a process of their own |
| `checker` | what was acknowledged, and whether it is there |
"""
