"""A client that appends to a replica group while its master changes.

    python examples/group_client.py DIRECTORY

DIRECTORY is new. Two nodes, a and b, run in this process; usually they run on two machines, and the client on a third
one. The client is given the address of b alone: it asks b who is the master, and goes to b when b is promoted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyreplog import ha


def main(directory: Path) -> None:
    with (
        ha.open_master(directory / "a", name="a", members=["a", "b"], sync_replicas=1) as a,
        ha.open_replica(directory / "b", name="b", master=a.address) as b,
        ha.connect([b.address]) as client,
    ):
        a.learn_peers({"b": b.address})  # a follows b when b is promoted
        number = client.append(b"order 1", key=b"customer 7")  # returns when both nodes have it
        print(f"order 1 is entry {number}; {client.status()['name']} is the master")

        orders = [client.submit(b"order %d" % n) for n in range(2, 8)]
        b.promote()  # while entries are on their way: each is appended once
        orders += [client.submit(b"order %d" % n) for n in range(8, 11)]
        client.flush()
        print(f"entries {orders[0].result()} to {orders[-1].result()}; {client.status()['name']} is the master")
        for record in client.follow(0, timeout=0):
            print(f"{record.entry}: {record.value.decode()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
