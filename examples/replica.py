"""A log with a replica that is promoted when the master is gone.

    python examples/replica.py DIRECTORY

DIRECTORY is new. Two nodes, a and b, run in this process, each with a directory of its own; usually they run on two
machines. An append returns when both nodes have the entry, so a promotion loses nothing that an append has confirmed.
The former master comes back as a replica and cuts the entries that nobody confirmed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyreplog
from pyreplog import ha


def show(node: ha.Node) -> None:
    print(f"{node.name}: {node.role} of term {node.term}, {list(node.log)}")


def main(directory: Path) -> None:
    path_a, path_b = directory / "a", directory / "b"
    with ha.open_master(path_a, name="a", members=["a", "b"], sync_replicas=1) as a:
        b = ha.open_replica(path_b, name="b", master=a.address)
        a.append(b"order 1", key=b"customer 7")  # returns when b has it, too
        show(a)
    try:
        b.append(b"order 2")
    except pyreplog.NotMasterError:
        print("b does not take appends while it is a replica")

    b.promote()  # of two members with sync_replicas=1, one is enough to elect a master
    with b, ha.open_replica(path_a, name="a", master=b.address) as a:
        b.append(b"order 2", key=b"customer 8")  # returns when a has it
        show(b)
        for record in a.log.follow(start=0):  # a replica shows the entries that are confirmed
            print(f"a: {record.value!r}")
            if record.value == b"order 2":
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
