"""The argument parsers of commands and of their actions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from pyreplog.cli.shared.output import shown

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


Action: TypeAlias = tuple[
    str, str, Callable[[argparse.ArgumentParser], object], Callable[[argparse.Namespace], int]
]  # fmt: skip
"""An action of a command: name, help, what adds its arguments, what runs it."""


def add_actions(parsers: Any, actions: Iterable[Action]) -> None:
    """Add a parser for each action. `run` of the command calls `arguments.action(arguments)`.

    Args:
        parsers: what `add_subparsers` of the command's parser returned.
        actions: the actions.
    """
    for name, text, add_arguments, run in actions:
        parser = parsers.add_parser(name, help=text, description=text)
        add_arguments(parser)
        parser.set_defaults(action=run)


class CommandParser(argparse.ArgumentParser):
    """A parser of a command or an action. Each takes `--json`, and lists its subcommands if one is missing.

    Parsers that `add_subparsers` makes have the same class, so that `--json` may be before or after any name.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON on standard output"
        )
        self._subcommand: str | None = None

    def add_subparsers(self, **settings: Any) -> Any:
        self._subcommand = settings.get("metavar")
        return super().add_subparsers(**settings)

    def error(self, message: str) -> NoReturn:
        if self._subcommand is not None and message.endswith(f"required: {self._subcommand}"):
            self.print_help(sys.stderr)
            self.exit(2, f"\n{self.prog}: error: expected {self._subcommand}\n")
        super().error(message)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print a message that may quote arguments, with their control characters escaped."""
        super()._print_message(shown(message, lines=True), file)


class IntermixedParser(CommandParser):
    """A parser whose options may be anywhere, even before the last positional argument.

    argparse parses subcommands so that `TARGET TOPIC --key K VALUE` is a topic without values, and VALUE one argument
    too many.
    """

    _is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_mixing:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False
