"""The options of a Kafka listener: TLS, users and settings."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyreplog.cli.shared import serving, tls
from pyreplog.errors import ConfigError, CorruptionError, InvalidArgumentError, ReplogError
from pyreplog.kafka import SaslUsers, Server
from pyreplog.kafka.sasl import MECHANISMS, PLAIN
from pyreplog.net.tls import TlsContext
from pyreplog.regular_files import read_regular

if TYPE_CHECKING:
    from pyreplog.topic.client.remote.client import Client

logger = logging.getLogger(__name__)

_USERS_FILE_MAX = 1 << 20
_SETTINGS = "kafka"
"""The table of a listener's settings, and how their names begin on the command line: `kafka.partitions`."""


def add_arguments(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Add the options. prefix: of their names, as in "kafka-", for a process that listens for others as well."""
    tls.add_server_arguments(parser, prefix)
    parser.add_argument(
        f"--{prefix}users",
        metavar="FILE",
        type=Path,
        help="clients must be one of these: a line NAME:PASSWORD for each",
    )
    parser.add_argument(
        f"--{prefix}mechanisms", metavar="NAME,...",
        help=f"SASL mechanisms of the users, of {', '.join(MECHANISMS)} (default: the last two)",
    )  # fmt: skip


def add_topics_arguments(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Add the options of the topics on ledgers that a listener serves as well. prefix: as of `add_arguments`."""
    parser.add_argument(
        f"--{prefix}topics", metavar="URL",
        help="also serve the topics on ledgers of these servers (pyreplog serve): pyreplog://HOST:PORT,...",
    )  # fmt: skip
    parser.add_argument(
        f"--{prefix}topics-secret-file", metavar="FILE", type=Path, help=f"secret of the servers of --{prefix}topics"
    )
    parser.add_argument(
        f"--{prefix}topics-tls-ca", metavar="FILE", type=Path,
        help=f"use TLS to the servers of --{prefix}topics; certificates that have signed theirs",
    )  # fmt: skip


@contextmanager
def connected_topics(arguments: argparse.Namespace, prefix: str = "") -> Iterator[Client | None]:
    """Connect to the servers of the topics on ledgers until the end of the block; None: no option names any.

    Raises InvalidArgumentError.
    """
    names = [f"{prefix}topics{name}" for name in ("", "-secret-file", "-tls-ca")]
    url, secret_file, tls_ca = (getattr(arguments, name.replace("-", "_")) for name in names)
    if url is None:
        for name, option in ((names[1], secret_file), (names[2], tls_ca)):
            if option is not None:
                raise InvalidArgumentError(f"--{name}: expected with --{names[0]}, found without")
        yield None
        return
    from pyreplog.topic.client.remote.client import connect  # most listeners have no such topics, and do not load it

    context = None if tls_ca is None else tls.trusting_context(f"--{names[2]}", tls_ca)
    with connect(url, secret=serving.secret(secret_file), tls=context) as client:
        yield client


def split_settings(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the broker, and those of the listener, which the table `kafka` has.

    Raises ConfigError.
    """
    table = values.get(_SETTINGS, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{_SETTINGS}: expected a table of settings, found {table!r}")
    broker, listener = {}, dict(table)
    for name, value in values.items():
        if name.startswith(f"{_SETTINGS}."):
            listener[name.partition(".")[2]] = value
        elif name != _SETTINGS:
            broker[name] = value
    return broker, listener


class ListenerCredentials:
    """The TLS context and the users of a listener, from the files of a command, for as long as it runs.

    Raises InvalidArgumentError and OSError.
    """

    def __init__(self, arguments: argparse.Namespace, prefix: str = "") -> None:
        self._arguments, self._prefix = arguments, prefix
        context = tls.server_context(arguments, prefix)
        self.tls = None if context is None else TlsContext(context)
        self.users = self._users()
        if self.users is not None and PLAIN in self.users.mechanisms and self.tls is None:
            logger.warning("clients send their passwords in clear: %s is offered without TLS", PLAIN)

    @property
    def has_files(self) -> bool:
        """Whether `reload` would read anything."""
        return self.tls is not None or self.users is not None

    def reload(self, servers: Iterable[Server]) -> None:
        """Read the files again, for later connections. If one is invalid, that is logged and nothing changes."""
        if not self.has_files:
            logger.warning("SIGHUP: there are no files to reload")
            return
        try:
            context, users = tls.server_context(self._arguments, self._prefix), self._users()
        except (ReplogError, OSError) as error:
            logger.error("SIGHUP: users and certificates of Kafka clients were not reloaded: %s", error)
            return
        if self.tls is not None and context is not None:
            self.tls.replace(context)
        for server in servers:
            if users is not None:
                server.replace_users(users)
        logger.warning("SIGHUP: users and certificates of Kafka clients were reloaded, for new connections")

    def _users(self) -> SaslUsers | None:
        names = (f"{self._prefix}users", f"{self._prefix}mechanisms")
        file, mechanisms = (getattr(self._arguments, name.replace("-", "_")) for name in names)
        if file is None:
            if mechanisms is not None:
                raise InvalidArgumentError(f"--{names[1]}: expected with --{names[0]}, found without")
            return None
        passwords = _passwords(file)
        try:
            return SaslUsers(passwords) if mechanisms is None else SaslUsers(passwords, tuple(mechanisms.split(",")))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"--{names[1]}: {error}") from None


def _passwords(file: Path) -> dict[str, str]:
    """Read the file of users. Errors name the line, and tell nothing of it."""
    try:
        lines = read_regular(file, _USERS_FILE_MAX).decode().splitlines()
    except (CorruptionError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"expected users in a regular file of UTF-8: {file}: {error}") from None
    passwords: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, password = line.partition(":")
        if not name or not password or "\0" in line:
            raise InvalidArgumentError(f"{file}, line {number}: expected NAME:PASSWORD")
        if name in passwords:
            raise InvalidArgumentError(f"{file}, line {number}: expected each user once")
        passwords[name] = password
    if not passwords:
        raise InvalidArgumentError(f"{file}: expected a line NAME:PASSWORD for each user, found none")
    return passwords
