"""Each Python that Spark starts for these tests runs this first. Spark gives the one that plans a stream ten seconds to
connect, which no setting changes: so it connects here, before all the imports that come first otherwise. They take as
long where a machine is at work on other things. Other processes do nothing here, and import nothing."""

import os
import sys

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


def connect_early(path: str) -> None:
    """path: of the Unix socket at which Spark waits. Who connects to it later has this connection."""
    import socket

    early = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    early.connect(path)

    class Socket(socket.socket):
        def connect(self, address: object) -> None:
            if address != path:
                super().connect(address)  # type: ignore[arg-type]
                return
            os.dup2(early.fileno(), self.fileno(), inheritable=False)
            early.close()

    socket.socket = Socket  # type: ignore[misc]


if PLANNER in sys.orig_argv:
    connect_early(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
