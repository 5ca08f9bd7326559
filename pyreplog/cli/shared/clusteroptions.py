"""Which cluster a command means: the arguments that say it, and the handle."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pyreplog.cli.shared import tls
from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.cluster import Cluster

VARIABLE = "PYREPLOG_CLUSTER"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", metavar="URL", default=os.environ.get(VARIABLE),
        help=f"metadata store of the cluster: zk://host:port/root or sqlite:PATH (default: ${VARIABLE})",
    )  # fmt: skip
    parser.add_argument("--embedded", metavar="DIR", help="in place of --cluster: a cluster that one process embeds")
    parser.add_argument("--bookies", metavar="N", type=int, default=3, help="bookies of --embedded (default 3)")
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="holds the secret that the bookies share")
    tls.add_client_arguments(parser)


def add_password(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--password-file", metavar="FILE", type=Path, help="holds the ledger's password")


def password(arguments: argparse.Namespace) -> bytes:
    """The ledger's password: none is b""."""
    return _content(arguments.password_file) or b""


def cluster(arguments: argparse.Namespace) -> Cluster:
    """Open the cluster that the arguments name."""
    if arguments.embedded is not None:
        return Cluster.embedded(arguments.embedded, bookies=arguments.bookies)
    if not arguments.cluster:
        raise InvalidArgumentError(f"say which cluster: --cluster URL, ${VARIABLE} or --embedded DIR")
    return Cluster.connect(arguments.cluster, secret=_content(arguments.secret_file), tls=tls.client_context(arguments))


def _content(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes().rstrip(b"\r\n")
