"""Settings on the command line: a TOML file, NAME=VALUE, and what the two make together."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Set
from pathlib import Path
from typing import Any

from pyreplog.errors import ConfigError, CorruptionError
from pyreplog.regular_files import read_regular

_FILE_MAX = 1 << 20  # bytes of settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings, as TOML: a line NAME = VALUE for each")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help="one setting; goes before --config; may be repeated",
    )  # fmt: skip


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """By name. ConfigError: the file or an argument is no such thing; what the names mean is the caller's to check."""
    found = {} if arguments.config is None else _file(arguments.config)
    for item in arguments.settings:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set: expected NAME=VALUE, found {item!r}")
        found[name.strip().replace("-", "_")] = _value(text.strip())
    return found


def check_known(found: dict[str, Any], known: Set[str]) -> None:
    """ConfigError: a name that is none of these."""
    unknown = sorted(found.keys() - known)
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}; there are {', '.join(sorted(known))}")


def _file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path, _FILE_MAX).decode())
    except (OSError, ValueError, CorruptionError) as error:
        raise ConfigError(f"--config {path}: {error}") from error


def _value(text: str) -> Any:
    """As TOML has it; what TOML does not have is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
