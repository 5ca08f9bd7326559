"""TLS on the command line: the arguments of a server and of a client, and the contexts they make."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

from pyreplog.errors import CorruptionError, InvalidArgumentError
from pyreplog.regular_files import PEM_FILE_MAX, check_regular


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="speak TLS: the certificate and its chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="its private key (default: in --tls-cert)")
    parser.add_argument("--tls-client-ca", metavar="FILE", type=Path, help="clients need a certificate signed by these")


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Of who is a server and a client."""
    add_server_arguments(parser)
    parser.add_argument("--tls-ca", metavar="FILE", type=Path, help="the certificates of others are signed by these")


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tls-ca", metavar="FILE", type=Path, help="speak TLS; bookies' certificates are signed by these"
    )
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="our certificate, for bookies that ask for one")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="its private key (default: in --tls-cert)")


def server_context(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """None: no TLS. Errors: InvalidArgumentError."""
    if arguments.tls_cert is None:
        if arguments.tls_key is not None or arguments.tls_client_ca is not None:
            raise InvalidArgumentError("--tls-key and --tls-client-ca go with --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_own(context, arguments)
    if arguments.tls_client_ca is not None:
        _trust(context, "--tls-client-ca", arguments.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    """None: no TLS. Errors: InvalidArgumentError."""
    if arguments.tls_ca is None:
        if arguments.tls_cert is not None or arguments.tls_key is not None:
            raise InvalidArgumentError("--tls-cert and --tls-key go with --tls-ca")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, "--tls-ca", arguments.tls_ca)
    if arguments.tls_cert is not None:
        _load_own(context, arguments)
    elif arguments.tls_key is not None:
        raise InvalidArgumentError("--tls-key goes with --tls-cert")
    return context


def _load_own(context: ssl.SSLContext, arguments: argparse.Namespace) -> None:
    try:  # with no password an encrypted key is refused; OpenSSL would ask the terminal
        for file in (arguments.tls_cert, arguments.tls_key):
            if file is not None:
                check_regular(file, PEM_FILE_MAX)
        context.load_cert_chain(arguments.tls_cert, arguments.tls_key, password="")
    except (OSError, ValueError, CorruptionError) as error:
        files = " and ".join(str(file) for file in (arguments.tls_cert, arguments.tls_key) if file is not None)
        raise InvalidArgumentError(f"no certificate with its key, unencrypted, in {files}: {error}") from error


def _trust(context: ssl.SSLContext, option: str, file: Path) -> None:
    try:
        check_regular(file, PEM_FILE_MAX)
        context.load_verify_locations(file)
    except (OSError, ValueError, CorruptionError) as error:
        raise InvalidArgumentError(f"{option}: no certificates in {file}: {error}") from error
