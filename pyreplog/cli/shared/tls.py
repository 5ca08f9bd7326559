"""TLS on the command line: arguments of servers and clients, and their contexts."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

from pyreplog.errors import CorruptionError, InvalidArgumentError
from pyreplog.regular_files import PEM_FILE_MAX, check_regular


def add_server_arguments(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Add the arguments of a server. prefix: of their names, as in "kafka-", for a second one of the process."""
    cert = f"--{prefix}tls-cert"
    parser.add_argument(cert, metavar="FILE", type=Path, help="use TLS: the certificate and its chain, PEM")
    parser.add_argument(
        f"--{prefix}tls-key", metavar="FILE", type=Path, help=f"private key of the certificate (default: in {cert})"
    )
    parser.add_argument(
        f"--{prefix}tls-client-ca", metavar="FILE", type=Path,
        help="require clients to have a certificate signed by these",
    )  # fmt: skip


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a process that is server and client."""
    add_server_arguments(parser)
    parser.add_argument(
        "--tls-ca", metavar="FILE", type=Path, help="certificates that have signed those of other nodes"
    )


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tls-ca", metavar="FILE", type=Path, help="use TLS; certificates that have signed those of servers"
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", type=Path, help="certificate of this client, for servers that require one"
    )
    parser.add_argument(
        "--tls-key", metavar="FILE", type=Path, help="private key of the certificate (default: in --tls-cert)"
    )


def server_context(arguments: argparse.Namespace, prefix: str = "") -> ssl.SSLContext | None:
    """Return the TLS context of a server; None: no TLS. prefix: of the arguments. Raises InvalidArgumentError."""
    names = [f"{prefix}tls-{name}" for name in ("cert", "key", "client-ca")]
    cert, key, client_ca = (getattr(arguments, name.replace("-", "_")) for name in names)
    if cert is None:
        if key is not None or client_ca is not None:
            raise InvalidArgumentError(f"--{names[1]}, --{names[2]}: expected with --{names[0]}, found without")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_own(context, cert, key)
    if client_ca is not None:
        _trust(context, f"--{names[2]}", client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS context of a client; None: no TLS. Raises InvalidArgumentError."""
    if arguments.tls_ca is None:
        if arguments.tls_cert is not None or arguments.tls_key is not None:
            raise InvalidArgumentError("--tls-cert, --tls-key: expected with --tls-ca, found without")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, "--tls-ca", arguments.tls_ca)
    if arguments.tls_cert is not None:
        _load_own(context, arguments.tls_cert, arguments.tls_key)
    elif arguments.tls_key is not None:
        raise InvalidArgumentError("--tls-key: expected with --tls-cert, found without")
    return context


def trusting_context(option: str, ca: Path) -> ssl.SSLContext:
    """Return the TLS context of a client that trusts certificates. Raises InvalidArgumentError, naming `option`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, option, ca)
    return context


def _load_own(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    try:  # with no password an encrypted key is refused; OpenSSL would ask the terminal
        for file in (cert, key):
            if file is not None:
                check_regular(file, PEM_FILE_MAX)
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError, CorruptionError) as error:
        files = " and ".join(str(file) for file in (cert, key) if file is not None)
        raise InvalidArgumentError(f"expected a certificate with its unencrypted key in {files}: {error}") from error


def _trust(context: ssl.SSLContext, option: str, file: Path) -> None:
    try:
        check_regular(file, PEM_FILE_MAX)
        context.load_verify_locations(file)
    except (OSError, ValueError, CorruptionError) as error:
        raise InvalidArgumentError(f"{option}: expected certificates in {file}: {error}") from error
