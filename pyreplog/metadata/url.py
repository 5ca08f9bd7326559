"""`open_store`: open the metadata store of a URL. Importing this module loads neither sqlite3 nor kazoo."""

from __future__ import annotations

import re
from pathlib import Path

from pyreplog.arguments import check_text
from pyreplog.errors import InvalidArgumentError, MissingExtraError
from pyreplog.metadata.store import MetadataStore

_SQLITE = re.compile(r"sqlite:(?://(?=/))?(?P<path>(?!//).+)")
_ZOOKEEPER = re.compile(r"zk://(?P<hosts>[^/\s]+)(?P<root>/.*)?")


def sqlite_file(url: str) -> Path | None:
    """Return the database file of a URL; None if the URL names no SQLite store."""
    match = _SQLITE.fullmatch(url)
    return None if match is None else Path(match["path"])


def is_shared(url: str) -> bool:
    """Return whether a URL names a store that other processes can open as well."""
    return sqlite_file(url) is not None or _ZOOKEEPER.fullmatch(url) is not None


def open_store(url: str, *, timeout: float = 10.0) -> MetadataStore:
    """Open the metadata store of a URL.

    Args:
        url: "memory:", a new store of this process; "sqlite:///absolute/path" or "sqlite:relative/path", a file;
            "zk://host:port,host:port/root", the keys below /root of a ZooKeeper ensemble.
        timeout: seconds that a call may take.

    Returns:
        A `MemoryStore`, `SQLiteStore` or `ZooKeeperStore`.

    Raises:
        WrongTypeError: `url` is not a str.
        InvalidArgumentError: `url` has another form.
        MissingExtraError: ZooKeeper needs kazoo, which is not installed.
        ReplogError: errors of the class of the store.

    Example:
        ```python
        with open_store("sqlite:///var/lib/cluster/metadata.db") as store:
            version = store.create("/app/leader", b"host-a")
            store.put("/app/leader", b"host-b", version)
        ```
    """
    if check_text("url", url) == "memory:":
        from pyreplog.metadata.memory import MemoryStore

        return MemoryStore()
    if (file := sqlite_file(url)) is not None:
        from pyreplog.metadata.sqlite import SQLiteStore

        return SQLiteStore(file, timeout=timeout)
    if (match := _ZOOKEEPER.fullmatch(url)) is None:
        raise InvalidArgumentError(f"url: expected memory:, sqlite:///path or zk://host:port/root, found {url!r}")
    try:
        from pyreplog.metadata.zookeeper import ZooKeeperStore
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "kazoo":
            raise
        raise MissingExtraError("ZooKeeper needs kazoo: pip install 'pyreplog[zookeeper]'") from error
    return ZooKeeperStore(match["hosts"], match["root"] or "/", timeout=timeout)
