"""Real ZooKeeper servers for tests, from the jars that pyspark carries."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType

from tests.ports import free_ports
from tests.waiting import stand_still, until

TICK_MS = 100
"""A session lasts at least two of them."""
SESSION_MAX_MS = 20_000

_STARTS_S = 180
"""Three of them, on few cores that others use."""

_ENDED = "ended"

_JARS = (
    "zookeeper-", "slf4j-api-", "log4j-", "netty-", "metrics-core-", "snappy-java-", "commons-io-", "commons-cli-",
    "audience-annotations-",
)  # fmt: skip
"""How their names begin: with all that pyspark carries it takes twice as long to start."""

_JAVA = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)  # fmt: skip


class Server:
    """One server process. `members` are the ensemble's server lines, none for a server of its own. session_max_ms: a
    session ends after so long without its client."""

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        number: int = 1,
        members: tuple[str, ...] = (),
        session_max_ms: int = SESSION_MAX_MS,
    ) -> None:
        self.port, self.directory = port, directory
        self._quorum = bool(members)
        directory.mkdir()
        (directory / "myid").write_text(str(number))
        (directory / "zoo.cfg").write_text(
            "\n".join(
                [
                    f"tickTime={TICK_MS}", f"dataDir={directory}", f"clientPort={port}",
                    "clientPortAddress=127.0.0.1", "admin.enableServer=false", "4lw.commands.whitelist=srvr",
                    f"maxSessionTimeout={session_max_ms}", "initLimit=100", "syncLimit=50", "maxClientCnxns=0", *members, "",
                ]
            )
        )  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Begin a process; `wait` says when it serves."""
        main = "quorum.QuorumPeerMain" if self._quorum else "ZooKeeperServerMain"
        command = [
            "java", *_JAVA, "-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.forceSync=no", "-cp", _class_path(),
            f"org.apache.zookeeper.server.{main}", str(self.directory / "zoo.cfg"),
        ]  # fmt: skip
        with (self.directory / "output").open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def start(self) -> None:
        self.spawn()
        self.wait()

    def wait(self) -> None:
        mode = until(self._mode_or_ended, _STARTS_S, pause_s=0.03)
        assert mode != _ENDED, f"the server ended: {(self.directory / 'output').read_text()[-2000:]}"

    def _mode_or_ended(self) -> str:
        assert self.process is not None
        return self.mode() or (_ENDED if self.process.poll() is not None else "")

    def mode(self) -> str:
        """standalone, leader or follower; empty when it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
        except OSError:
            return ""
        return answer.partition(b"Mode: ")[2].partition(b"\n")[0].decode()

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        assert self.process is not None
        stand_still(self.process)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Ensemble:
    """Three servers, or one; closed by `with`. Ports may be lost to others between choosing and binding: tried again."""

    def __init__(self, directory: Path, size: int, *, session_max_ms: int = SESSION_MAX_MS) -> None:
        self.servers: list[Server] = []
        for attempt in range(5):
            self.servers = _servers(directory / f"attempt-{attempt}", size, session_max_ms)
            try:
                for server in self.servers:
                    server.spawn()
                for server in self.servers:
                    server.wait()
                return
            except AssertionError as error:
                self.close()
                if "BindException" not in str(error):
                    raise
        raise AssertionError("no ports to be had")

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def leader(self) -> Server:
        """The server that leads, or that serves alone; waits until there is one."""
        return until(lambda: next((s for s in self.servers if s.mode() in ("leader", "standalone")), None))

    def close(self) -> None:
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _class_path() -> str:
    package = importlib.util.find_spec("pyspark")
    assert package is not None and package.origin is not None
    jars = (Path(package.origin).parent / "jars").iterdir()
    return ":".join(str(jar) for jar in sorted(jars) if jar.name.startswith(_JARS))


def _servers(directory: Path, size: int, session_max_ms: int) -> list[Server]:
    directory.mkdir(parents=True)
    ports = free_ports(3 * size)
    members = tuple(
        f"server.{n + 1}=127.0.0.1:{ports[size + 2 * n]}:{ports[size + 2 * n + 1]}" for n in range(size) if size > 1
    )
    return [
        Server(
            directory / f"server-{n + 1}", ports[n], number=n + 1, members=members, session_max_ms=session_max_ms
        )
        for n in range(size)
    ]  # fmt: skip
