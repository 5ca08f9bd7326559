"""The arguments that select a cluster, and opening it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pyreplog.cli.shared import serving, tls
from pyreplog.errors import InvalidArgumentError
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.embedded import METADATA
from pyreplog.regular_files import SECRET_FILE_MAX, read_regular

VARIABLE = "PYREPLOG_CLUSTER"
WHICH = f"no cluster: expected --cluster URL, ${VARIABLE} or --embedded DIR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", metavar="URL", default=os.environ.get(VARIABLE),
        help=f"metadata store of the cluster: zk://host:port/root or sqlite:PATH (default: ${VARIABLE})",
    )  # fmt: skip
    parser.add_argument("--embedded", metavar="DIR", help="instead of --cluster: directory of an embedded cluster")
    parser.add_argument("--bookies", metavar="N", type=int, default=3, help="bookies of --embedded (default 3)")
    parser.add_argument("--secret-file", metavar="FILE", type=Path, help="file with the secret that the bookies share")
    tls.add_client_arguments(parser)


def add_password(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--password-file", metavar="FILE", type=Path, help="file with the ledger's password")


def password(arguments: argparse.Namespace) -> bytes:
    """Return the ledger's password; b"": none."""
    if arguments.password_file is None:
        return b""
    return read_regular(arguments.password_file, SECRET_FILE_MAX).rstrip(b"\r\n")


def cluster(arguments: argparse.Namespace, *, create: bool = False) -> LedgerCluster:
    """Open the cluster that the arguments name; `create`: make the embedded one if its directory holds none.

    Raises:
        InvalidArgumentError: no cluster is named, or the directory holds none.
    """
    if arguments.embedded is not None:
        if not create and not (Path(arguments.embedded) / METADATA).exists():
            raise InvalidArgumentError(f"{arguments.embedded} holds no cluster")
        return LedgerCluster.embedded(arguments.embedded, bookies=arguments.bookies)
    if not arguments.cluster:
        raise InvalidArgumentError(WHICH)
    secret = serving.secret(arguments.secret_file)
    return LedgerCluster.connect(arguments.cluster, secret=secret, tls=tls.client_context(arguments))
