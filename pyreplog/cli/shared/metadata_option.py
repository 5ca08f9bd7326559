"""The option that names the metadata store of a cluster, for nodes that register there."""

from __future__ import annotations

import argparse
import os

from pyreplog.cli.shared.cluster_options import VARIABLE
from pyreplog.errors import InvalidArgumentError


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metadata", metavar="URL", help=f"metadata store of the cluster (default: ${VARIABLE})")


def url(arguments: argparse.Namespace) -> str:
    """Return the URL of the metadata store. Raises InvalidArgumentError if there is none."""
    address = arguments.metadata or os.environ.get(VARIABLE)
    if not address:
        raise InvalidArgumentError(f"no metadata store: expected --metadata URL or ${VARIABLE}")
    return str(address)
