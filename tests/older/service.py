"""A service with the master of a replica group: `python service.py FOLDER HOST:PORT MEMBER,...`.

It reads the numbers of entries from standard input, two on a line, appends them, and prints how many entries the log has.
It ends with its input. Older versions run it, which have no command that appends to a group.
"""

from __future__ import annotations

import json
import sys

from pyreplog import ha


def main() -> None:
    folder, address, members = sys.argv[1:]
    name, port = members.partition(",")[0], int(address.rpartition(":")[2])
    with ha.open_master(folder, name=name, port=port, members=members.split(","), sync_replicas=1) as node:
        print(json.dumps({"address": node.address}), flush=True)
        for line in sys.stdin:
            first, end = map(int, line.split())
            node.append_batch([b"%d" % number for number in range(first, end)])
            print(json.dumps({"entries": end}), flush=True)


if __name__ == "__main__":
    main()
