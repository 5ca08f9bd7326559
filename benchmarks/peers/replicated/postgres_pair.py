"""PostgreSQL with a synchronous standby."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from benchmarks.peers.replicated.peer import ReplicatedPeer, Servers, free_ports, program
from benchmarks.result import Durability

_ACCOUNT = "postgres"
_COPY = "copy log (value) from stdin (format binary)"
_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
shared_buffers = '256MB'
wal_level = replica
max_wal_senders = 4
max_wal_size = '4GB'
checkpoint_timeout = '30min'
hot_standby = on
fsync = {fsync}
"""


class PostgresPair(ReplicatedPeer):
    """appended: the standby has written it, nobody syncs (remote_write, fsync off). synced: both disks have it."""

    title = "PostgreSQL, synchronous standby"
    durabilities: ClassVar[frozenset[Durability]] = frozenset({"appended", "synced"})
    batch = 2560

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._servers = Servers()
        self._fsync = "on" if durability == "synced" else "off"
        self._client: Any = None
        primary, standby = directory / "primary", directory / "standby"
        ports = free_ports(2)
        try:
            self._client = make_primary(self._servers, primary, ports[0], self._fsync)
            self._make_standby(standby, ports)
            level = "on" if durability == "synced" else "remote_write"
            self._client.execute("alter system set synchronous_standby_names = '*'")
            self._client.execute("select pg_reload_conf()")
            self._servers.until(self._standby_is_synchronous)
            self._client.execute(f"set synchronous_commit = {level}")
            self._client.execute("create table log (id bigserial primary key, value bytea)")
            self._client.execute("alter table log alter value set storage plain")
        except BaseException:
            self.close()
            raise

    def _make_standby(self, folder: Path, ports: list[int]) -> None:
        source = ("-h", "127.0.0.1", "-p", str(ports[0]), "-U", _ACCOUNT)
        _run("pg_basebackup", folder, *source, "-D", str(folder), "-R", "-X", "stream", "-c", "fast", "--no-sync")
        _serve(self._servers, folder, ports[1], self._fsync)

    def _standby_is_synchronous(self) -> bool | None:
        rows = self._client.execute("select sync_state from pg_stat_replication where state = 'streaming'").fetchall()
        return ("sync",) in rows or None

    @staticmethod
    def version() -> str:
        told = subprocess.run([_program("postgres"), "--version"], capture_output=True, text=True, check=True).stdout
        return f"PostgreSQL {told.split()[2]}, psycopg {version('psycopg')}"

    def start(self) -> None:
        self._client.execute("truncate log restart identity")

    def append(self, value: bytes) -> None:
        self._client.execute("insert into log (value) values (%b)", (value,), prepare=True)

    def append_batch(self, values: list[bytes]) -> None:
        client = self._client
        with client.transaction(), client.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.set_types(["bytea"])
            for value in values:
                copy.write_row((value,))

    def values(self) -> Iterator[bytes]:
        with self._client.cursor(binary=True) as cursor:
            yield from (bytes(value) for (value,) in cursor.stream("select value from log order by id"))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._servers.close()


def make_primary(servers: Servers, folder: Path, port: int, fsync: str) -> Any:
    """A server with an empty database, and a connection to it. fsync: "on" or "off"."""
    _run("initdb", folder, "--auth=trust", f"--username={_ACCOUNT}", "--no-sync", "-D", str(folder))
    _serve(servers, folder, port, fsync)
    return servers.until(lambda: connect(port), psycopg.OperationalError)


def connect(port: int, *, autocommit: bool = True) -> Any:
    """To a server on this machine."""
    return psycopg.connect(f"host=127.0.0.1 user={_ACCOUNT} dbname=postgres port={port}", autocommit=autocommit)


def _serve(servers: Servers, folder: Path, port: int, fsync: str) -> None:
    with (folder / "postgresql.conf").open("a") as file:
        file.write(_SETTINGS.format(port=port, fsync=fsync))
    servers.start([*_as_account(), _program("postgres"), "-D", str(folder)], folder.with_suffix(".log"))


def _as_account() -> list[str]:
    """PostgreSQL refuses to run as root: as its own account then, but with the right to pass root's folders."""
    if os.geteuid() != 0:
        return []
    capability = "+dac_override"
    account = (f"--reuid={_ACCOUNT}", f"--regid={_ACCOUNT}", "--clear-groups")
    return [program("setpriv", "util-linux"), *account, f"--inh-caps={capability}", f"--ambient-caps={capability}"]


def _run(name: str, folder: Path, *words: str) -> None:
    """Have a program fill a folder, which belongs to the account."""
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, _ACCOUNT, _ACCOUNT)
    done = subprocess.run(
        [*_as_account(), _program(name), *words], capture_output=True, text=True, cwd="/", check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr}")


def _program(name: str) -> str:
    """Debian keeps them out of the path."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(debian[-1]) if debian else program(name, "postgresql")
