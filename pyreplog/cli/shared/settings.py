"""Settings on the command line: a TOML file, NAME=VALUE, and both together."""

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
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="file with settings, as TOML: a line NAME = VALUE for each"
    )
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings",
        help="one setting; overrides --config; may be repeated",
    )  # fmt: skip


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return settings by name. Raises ConfigError for a malformed file or argument; the caller checks the names."""
    values = {} if arguments.config is None else _file(arguments.config)
    for item in arguments.settings:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set: expected NAME=VALUE, found {item!r}")
        values[name.strip().replace("-", "_")] = _value(text.strip())
    return values


def check_known(values: dict[str, Any], known: Set[str]) -> None:
    """Raise ConfigError for a name that is not known."""
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}; there are {', '.join(sorted(known))}")


def _file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path, _FILE_MAX).decode())
    except (OSError, ValueError, CorruptionError) as error:
        raise ConfigError(f"--config {path}: {error}") from error


def _value(text: str) -> Any:
    """Parse a value as TOML; anything else is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
