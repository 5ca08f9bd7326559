"""Commands to a node over its port, as those of `pyreplog ha`: JSON in, JSON out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyreplog.errors import InvalidMessageError, ReplogError
from pyreplog.ha.protocol import messages
from pyreplog.ha.protocol.messages import Command, StatusReply
from pyreplog.net.connection import Connection
from pyreplog.net.fair_executor import FairExecutor
from pyreplog.net.server_connection import ServerConnection
from pyreplog.stream.fields import TEXT_BYTES_MAX, is_name
from pyreplog.stream.terms import Term

logger = logging.getLogger(__name__)

THREADS_MAX, RUNNING_MAX = 8, 2


class Commanded(Protocol):
    """The part of `Node` that commands use."""

    @property
    def name(self) -> str: ...
    def stats(self) -> dict[str, Any]: ...
    def promote(self, *, force: bool = False) -> str: ...
    def promote_after(self, lost: Term) -> str: ...
    def follow(self, master: str | None) -> None: ...
    def add_member(self, name: str, *, force: bool = False) -> None: ...
    def remove_member(self, name: str, *, force: bool = False) -> None: ...
    def set_sync_replicas(self, count: int, *, force: bool = False) -> None: ...
    def learn_peers(self, addresses: Mapping[str, str]) -> None: ...


class Commands:
    """Runs the commands of clients in a few threads; connections take turns."""

    def __init__(self, node: Commanded) -> None:
        self._node = node
        self._jobs = FairExecutor("pyreplog-command", threads_max=THREADS_MAX, running_max=RUNNING_MAX)

    @property
    def pending(self) -> int:
        """Number of commands that wait or run."""
        return self._jobs.queued + self._jobs.running

    def take(self, connection: ServerConnection, number: int, command: Command) -> None:
        """Run a command, and answer it. Never blocks."""
        self._jobs.submit(connection, lambda: execute(self._node, connection, number, command))

    def leave(self, connection: Connection) -> None:
        """Drop the waiting commands of a connection."""
        self._jobs.leave(connection)

    def close(self) -> None:
        """Run no more commands. Does not wait for a running one, which may itself be closing the node."""
        self._jobs.stop()


def execute(node: Commanded, connection: ServerConnection, number: int, command: Command) -> None:
    """Run a command and answer {"error": class, "message": text}, or its result. May block."""
    try:
        answer = _run_command(node, _parse(command.json))
    except (ReplogError, OSError) as error:
        answer = _failure(error)
    except Exception as error:
        logger.exception("%s: a command failed", node.name)
        answer = _failure(error)
    connection.reply(number, messages.encode(StatusReply(json.dumps(answer).encode())))


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)[:TEXT_BYTES_MAX]}


def _parse(data: bytes) -> dict[str, Any]:
    try:
        command = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidMessageError(f"command: expected JSON: {error}") from None
    if not isinstance(command, dict) or not isinstance(command.get("command"), str):
        raise InvalidMessageError(f'command: expected an object with a "command", found {data[:80]!r}')
    return command


def _run_command(node: Commanded, command: dict[str, Any]) -> dict[str, Any]:
    force = command.get("force", False) is True
    commands: dict[str, Callable[[], dict[str, Any]]] = {
        "status": lambda: node.stats(),
        "promote": lambda: {"possible_loss": _promote(node, command, force=force), **node.stats()},
        "follow": lambda: _done(node, lambda: node.follow(_text(command, "master"))),
        "add-member": lambda: _done(node, lambda: node.add_member(_text(command, "name"), force=force)),
        "remove-member": lambda: _done(node, lambda: node.remove_member(_text(command, "name"), force=force)),
        "sync-replicas": lambda: _done(node, lambda: node.set_sync_replicas(_count(command, "count"), force=force)),
        "peers": lambda: _done(node, lambda: node.learn_peers(_addresses(command))),
    }
    run = commands.get(command["command"])
    if run is None:
        raise InvalidMessageError(f"command: expected one of {', '.join(commands)}, found {command['command']!r}")
    return run()


def _done(node: Commanded, call: Callable[[], object]) -> dict[str, Any]:
    call()
    return node.stats()


def _promote(node: Commanded, command: dict[str, Any], *, force: bool) -> str:
    lost = command.get("lost")  # sent by a candidate that was not elected, in this version and later ones
    return node.promote(force=force) if lost is None else node.promote_after(_term(command, "lost"))


def _term(command: dict[str, Any], name: str) -> Term:
    match command.get(name):
        case [int(number), str(master)] if number > 0 and not isinstance(number, bool) and is_name(master):
            return Term(number, master)
        case value:
            text = f"{command['command']}: {name}: expected a number and a name, found {_short(value)}"
            raise InvalidMessageError(text)


def _text(command: dict[str, Any], name: str) -> str:
    value = command.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 1024:
        raise InvalidMessageError(f"{command['command']}: {name}: expected a text, found {_short(value)}")
    return value


def _count(command: dict[str, Any], name: str) -> int:
    value = command.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidMessageError(f"{command['command']}: {name}: expected a number from 0 on, found {_short(value)}")
    return value


def _addresses(command: dict[str, Any]) -> dict[str, str]:
    value = command.get("addresses")
    if not isinstance(value, dict) or not all(isinstance(address, str) for address in value.values()):
        raise InvalidMessageError(f"peers: addresses: expected texts by name, found {_short(value)}")
    return value


def _short(value: object) -> str:
    try:
        return repr(value)[:80]
    except RecursionError:  # json.loads allows more levels than repr
        return f"a {type(value).__name__} that is nested too deeply"
