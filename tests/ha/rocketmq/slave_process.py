"""A slave in a process of its own, which a test kills. It prints the end of its log at the start, and after each
append."""

from __future__ import annotations

import sys
import threading

from pyreplog.net.reactor import Reactor
from pyreplog.rocketmq import RawLog, RocketMQSlave, Timeouts


def main() -> None:
    directory, port, file_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with Reactor() as reactor, RawLog(directory, file_bytes=file_bytes) as log:
        reactor.start()
        print(log.end, flush=True)
        with RocketMQSlave(
            reactor,
            log,
            ("127.0.0.1", port),
            start=0,
            landed=lambda: print(log.end, flush=True),
            times=Timeouts(retry_ms=100),
        ):
            threading.Event().wait()


if __name__ == "__main__":
    main()
