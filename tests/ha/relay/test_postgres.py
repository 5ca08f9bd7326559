"""A PostgreSQL server stores the applied position through psycopg, in the transaction of the callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.peers.replicated.peer import Servers
from benchmarks.peers.replicated.postgres_pair import connect, make_primary
from pyreplog import RecordBatch
from pyreplog.errors import ApplyError, PositionError
from pyreplog.ha.relay import Advance, Applier, SqlPosition
from tests.ports import free_ports

from .lab import fill, relay_log

WAIT_S = 60
COUNT, REFUSED = 300, 150

Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    servers, (port,) = Servers(), free_ports(1)
    try:
        make_primary(servers, tmp_path_factory.mktemp("postgres") / "primary", port, "off").close()
        yield lambda: connect(port, autocommit=False)
    finally:
        servers.close()


def position(server: Connect, name: str) -> SqlPosition:
    return SqlPosition(server, name, paramstyle=psycopg.paramstyle)


def rows_of(server: Connect) -> list[tuple[int, bytes]]:
    """Return committed rows, read over another connection."""
    with closing(server()) as database:
        return database.execute("SELECT entry, value FROM applied ORDER BY entry").fetchall()


def test_a_failed_callback_rolls_back_rows_and_position_together(server: Connect, tmp_path: Path) -> None:
    """The callback fails after it wrote rows and the position: both are undone. The next attempt finds rows and
    position consistent."""
    positions, refusing = position(server, "exactly"), [True]
    with closing(server()) as database, relay_log(tmp_path / "relay") as relay:
        database.execute("CREATE TABLE applied (entry bigint, value bytea)")
        database.commit()

        def apply(batch: RecordBatch, advance: Advance) -> None:
            with database.transaction():
                rows = zip(batch.entry.tolist(), batch.values(), strict=True)
                database.cursor().executemany("INSERT INTO applied VALUES (%s, %s)", list(rows))
                positions.store(database.cursor(), advance)
                if refusing and REFUSED in batch.entry:
                    raise ValueError("refused")

        fill(relay, COUNT)
        with Applier(relay, apply, positions, batch_entries=32) as applier:
            applier.start()
            with pytest.raises(ApplyError):
                applier.wait_applied(COUNT - 1, WAIT_S)
            assert positions.load() == applier.position and applier.position.entry == REFUSED
            assert len(rows_of(server)) == REFUSED
        refusing.clear()
        with Applier(relay, apply, positions, batch_entries=32) as applier:
            applier.start()
            applier.wait_applied(COUNT - 1, WAIT_S)
            assert positions.load() == applier.position
        assert rows_of(server) == [(entry, bytes(relay[entry])) for entry in range(COUNT)]


def test_a_row_that_another_applier_moved(server: Connect, tmp_path: Path) -> None:
    with relay_log(tmp_path / "relay") as relay:
        fill(relay, COUNT)
        seen: list[Advance] = []

        def apply(batch: RecordBatch, advance: Advance) -> None:
            seen.append(advance)
            positions.save(advance)

        positions = position(server, "moved")
        with Applier(relay, apply, positions, batch_entries=32) as applier:
            applier.start()
            applier.wait_applied(COUNT - 1, WAIT_S)
        with pytest.raises(PositionError):
            positions.save(seen[0])
        assert positions.load() == seen[-1].after
