"""SqlPosition: stores the applied position in the database that is applied to, so that entries are applied once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pyreplog.errors import InvalidArgumentError, PositionError
from pyreplog.ha.relay.position import Advance, Applied

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric": ":{}"}
_COLUMNS = ("log_uuid", "log_position", "entry", "last_check")


class DbCursor(Protocol):
    """The part of a DB-API 2.0 cursor that is used."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, operation: str, parameters: Sequence[Any], /) -> object: ...
    def fetchone(self) -> Any: ...
    def close(self) -> object: ...


class DbConnection(Protocol):
    """The part of a DB-API 2.0 connection that is used."""

    def cursor(self) -> Any: ...
    def commit(self) -> object: ...
    def rollback(self) -> object: ...
    def close(self) -> object: ...


class SqlPosition:
    """Keeps the applied position in the database that is applied to, in the same transaction: exactly once.

    The function calls `store(cursor, advance)` in the transaction in which it applies the batch. The position and what
    was applied then become durable together. The update names the position before the batch: if a second applier moved
    it, or the batch is applied again, PositionError undoes the transaction. MySQL keeps `mysql.slave_relay_log_info`
    in a transactional table in the same way. The connections must not be in autocommit mode.

    Args:
        connect: opens another connection to the same database, for transactions outside the function.
        name: name of the applier and key of its row, 1 to 255 characters.
        paramstyle: `paramstyle` of the driver: "qmark" (sqlite3), "format" or "pyformat" (psycopg, PyMySQL), or
            "numeric".
        table: name of the table, with or without a schema; it is created if it is missing.

    Raises:
        InvalidArgumentError: an argument is outside its bounds.

    Example:
        ```python
        positions = SqlPosition(lambda: sqlite3.connect(path), "carriers")

        def apply(batch, advance):
            with database:  # one transaction
                database.executemany("INSERT …", rows(batch))
                positions.store(database.cursor(), advance)
        ```

    See docs/relay.md.
    """

    transactional = True

    def __init__(
        self, connect: Callable[[], DbConnection], name: str, *, paramstyle: str = "qmark",
        table: str = "pyreplog_applied",
    ) -> None:  # fmt: skip
        if paramstyle not in _PLACEHOLDERS:
            raise InvalidArgumentError(f"paramstyle: expected one of {', '.join(_PLACEHOLDERS)}, found {paramstyle!r}")
        if not _TABLE.fullmatch(table):
            raise InvalidArgumentError(
                f"table: expected a name of letters, digits and _, with or without a schema, found {table!r}"
            )
        if not 0 < len(name) <= 255:
            raise InvalidArgumentError(f"name: expected 1 to 255 characters, found {len(name)}")
        self.name, self.table = name, table
        self._connect, self._placeholder_format = connect, _PLACEHOLDERS[paramstyle]
        self._create()

    def store(self, cursor: DbCursor, advance: Advance) -> None:
        """Move the row from `advance.before` to `advance.after`, in the transaction of the caller.

        Args:
            cursor: a cursor of that transaction.
            advance: the change.

        Raises:
            PositionError: the row is not at `advance.before`. The caller must roll the transaction back.
        """
        after, before = _row(advance.after), advance.before
        settings = ", ".join(f"{column} = {self._parameter(i)}" for i, column in enumerate(_COLUMNS))
        where = f"name = {self._parameter(4)} AND log_uuid = {self._parameter(5)} AND entry = {self._parameter(6)}"
        values = (*after, self.name, before.log.hex(), before.entry)
        cursor.execute(f"UPDATE {self.table} SET {settings} WHERE {where}", values)
        if cursor.rowcount != 1:
            raise PositionError(
                f"{self.table}: {self.name!r} is not at entry {before.entry} of log {before.log.hex()}: "
                "another applier moved it, or the batch was applied already"
            )

    def load(self) -> Applied | None:
        """Return the committed position; None: the row does not exist.

        Raises:
            PositionError: the row holds no valid position.
        """
        query = f"SELECT {', '.join(_COLUMNS)} FROM {self.table} WHERE name = {self._parameter(0)}"
        row = self._in_transaction(lambda cursor: _fetch(cursor, query, (self.name,)))
        if row is None:
            return None
        try:
            log, position, entry, check = row
            return Applied(bytes.fromhex(log), int(position), int(entry), int(check))
        except (TypeError, ValueError) as error:
            raise PositionError(f"{self.table}: {self.name!r}: expected a position, found {row!r}") from error

    def begin(self, applied: Applied) -> None:
        """Store the first position, in a separate transaction.

        The driver raises its IntegrityError if a position is stored already.

        Args:
            applied: the position.
        """
        placeholders = ", ".join(self._parameter(i) for i in range(5))
        query = f"INSERT INTO {self.table} (name, {', '.join(_COLUMNS)}) VALUES ({placeholders})"
        self._in_transaction(lambda cursor: cursor.execute(query, (self.name, *_row(applied))))

    def save(self, advance: Advance) -> None:
        """Store `advance.after` in a separate transaction. The applier calls it for an entry that is skipped.

        Args:
            advance: the change.

        Raises:
            PositionError: the row is not at `advance.before`.
        """
        self._in_transaction(lambda cursor: self.store(cursor, advance))

    def _create(self) -> None:
        columns = "log_uuid CHAR(32), log_position BIGINT, entry BIGINT, last_check BIGINT"
        query = f"CREATE TABLE IF NOT EXISTS {self.table} (name VARCHAR(255) PRIMARY KEY, {columns})"
        self._in_transaction(lambda cursor: cursor.execute(query, ()))

    def _parameter(self, i: int) -> str:
        """Return the placeholder of parameter i, in the style of the driver."""
        return self._placeholder_format.format(i + 1)

    def _in_transaction(self, work: Callable[[DbCursor], object]) -> Any:
        """Run `work` on a new connection, and commit."""
        connection = self._connect()
        try:
            cursor = connection.cursor()
            try:
                result = work(cursor)
                connection.commit()
            finally:
                cursor.close()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()
        return result

    def __repr__(self) -> str:
        return f"<SqlPosition {self.name!r} in {self.table}>"


def _fetch(cursor: DbCursor, query: str, parameters: Sequence[Any]) -> Any:
    cursor.execute(query, parameters)
    return cursor.fetchone()


def _row(applied: Applied) -> tuple[str, int, int, int]:
    return applied.log.hex(), applied.position, applied.entry, applied.check
