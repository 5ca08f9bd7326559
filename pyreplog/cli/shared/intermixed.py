"""A parser whose options may stand anywhere, also before the last of a row of arguments."""

from __future__ import annotations

import argparse
from typing import Any


class IntermixedParser(argparse.ArgumentParser):
    """As argparse parses for subcommands, it takes `TARGET TOPIC --key K VALUE` for a topic without values, and VALUE
    for one argument too many."""

    _is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_mixing:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False
