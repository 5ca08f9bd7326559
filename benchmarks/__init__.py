"""What pyreplog costs, beside the bare limits of the machine and beside its peers, measured in the same run.

`python -m benchmarks` prints every row of the goals; `pytest benchmarks` gives pytest-benchmark tables of the common
calls. A figure alone says nothing here: each comes with its other side, taken in turns with it.

| folder | holds |
|---|---|
| `rows` | what is measured, by name (`registry`) |
| `limits` | what the machine can do without pyreplog, in C |
| `bounds` | what bounds a goal that is not met: docs/bounds.md |
| `peers` | other stores that do the same work |
"""
