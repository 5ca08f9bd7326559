"""A cluster that others reach over a wire that can be cut, and a cluster of server processes whose owners can be
killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyreplog import Cluster, TopicServer
from tests.geo.sites import NOWHERE
from tests.ledger.processes import ProcessGroup
from tests.topic.remoting import Wire


class Place:
    """A cluster in this process, and the wire over which the others reach the server of its topics."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self.name = path.name
        self.cluster = stack.enter_context(Cluster.embedded(path, bookies=1))
        self.server: TopicServer | None = None
        self.wire = stack.enter_context(Wire(NOWHERE))
        stack.callback(self.end)

    def serve(self) -> None:
        """Start a new server, as an upgrade does: the former one ends, and its topics are closed."""
        self.end()
        for topic in self.cluster.topics.opened():
            topic.close()
        self.server = TopicServer(self.cluster)
        self.wire.lead_to(self.server.address)
        self.wire.cut()

    def end(self) -> None:
        if self.server is not None:
            self.server.close()


class TwoServers:
    """Cluster a, two server processes of which replicate a topic to cluster b of this process.

    Attributes:
        address: of the server that will be killed.
        url: of both servers.
        wire: leads from a to b.
    """

    def __init__(self, a: Cluster, b: Cluster, target: TopicServer, wire: Wire, processes: ProcessGroup) -> None:
        self.a, self.b, self.wire, self.processes, self._target = a, b, wire, processes, target
        self._servers = [processes.start("pyreplog", "serve", processes.url, "--json") for _ in range(2)]
        addresses = [server.wait_for("address") for server in self._servers]
        self.address, self.url = f"pyreplog://{addresses[0]}", f"pyreplog://{','.join(addresses)}"

    def part(self) -> None:
        """Cut the connections to b, and refuse new ones."""
        self.wire.lead_to(NOWHERE)
        self.wire.cut()

    def stop_servers(self) -> None:
        """Kill the second server, so that nobody takes topics over; stop the first one with SIGSTOP, so that it answers
        nothing, and its lease ends."""
        self._servers[1].kill()
        self._servers[0].signal(signal.SIGSTOP)

    def resume_owner(self) -> None:
        """Let the first server go on."""
        self._servers[0].signal(signal.SIGCONT)

    def kill_owner(self) -> None:
        """Kill the first server, then accept connections to b again."""
        self._servers[0].signal(signal.SIGKILL)
        self._servers[0].wait()
        self.wire.lead_to(self._target.address)


@contextmanager
def two_servers(path: Path, topic: str) -> Iterator[TwoServers]:
    """Start clusters a and b, with a policy that replicates the topic from a to b."""
    folder = path / "a"
    folder.mkdir()
    with (
        Cluster.embedded(path / "b", bookies=1) as b,
        TopicServer(b) as target,
        Wire(target.address) as wire,
        ProcessGroup(folder, f"sqlite:{folder}/metadata.sqlite") as processes,
    ):
        processes.start_bookies("bookie")
        with Cluster.connect(processes.url) as a:
            both = TwoServers(a, b, target, wire, processes)
            a.geo.add_cluster("b", f"pyreplog://{wire.address}")
            a.geo.set_policy(topic, targets=["b"])
            yield both
