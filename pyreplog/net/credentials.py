"""Credentials: how a client shows who it is, and whom it trusts, as it may travel: files, by their names."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field

from pyreplog.errors import ConfigError, CorruptionError
from pyreplog.net.handshake import Secret, parse_secret
from pyreplog.regular_files import PEM_FILE_MAX, SECRET_FILE_MAX, check_regular, read_regular


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What a connection to servers or bookies takes. Each process opens the files itself, under the same paths.

    secret: what the others were started with; or secret_file: a file that holds it (a line feed at its end does not
    count). tls_ca: speak TLS, the certificates of the others are signed by these. tls_cert, tls_key: our own
    certificate with its chain, and its private key, where that is not in the same file. All are PEM. ConfigError: they
    do not go together.
    """

    secret: bytes | None = field(default=None, repr=False)
    secret_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        for name, given, other, needed in (
            ("tlsCert", self.tls_cert, "tlsCa", self.tls_ca),
            ("tlsKey", self.tls_key, "tlsCert", self.tls_cert),
        ):
            if given is not None and needed is None:
                raise ConfigError(f"{name}: expected with {other}, found without")
        if self.secret is not None and self.secret_file is not None:
            raise ConfigError("secret, secretFile: expected at most one of them, found 2")

    def read_secret(self) -> bytes | Secret | None:
        """None: there is none. Errors: ConfigError: this host does not see the file, or there is nothing in it."""
        if self.secret_file is None:
            return self.secret
        try:
            content = read_regular(self.secret_file, SECRET_FILE_MAX)
        except (OSError, CorruptionError) as error:
            raise _unseen("secretFile", "a file that holds the secret", error) from error
        if not content.rstrip(b"\r\n"):
            raise ConfigError(f"secretFile: expected a secret in {self.secret_file}, found nothing")
        return parse_secret(content)

    def context(self) -> ssl.SSLContext | None:
        """Of a client; None: no TLS. Errors: ConfigError: this host does not see a file, or it is not what it should
        be."""
        if self.tls_ca is None:
            return None
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            check_regular(self.tls_ca, PEM_FILE_MAX)
            made.load_verify_locations(self.tls_ca)
        except (OSError, ValueError, CorruptionError) as error:
            raise _unseen("tlsCa", f"certificates in {self.tls_ca}", error) from error
        if self.tls_cert is None:
            return made
        try:  # with no password an encrypted key is refused; OpenSSL would ask the terminal
            for file in (self.tls_cert, self.tls_key):
                if file is not None:
                    check_regular(file, PEM_FILE_MAX)
            made.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (OSError, ValueError, CorruptionError) as error:
            files = " and ".join(file for file in (self.tls_cert, self.tls_key) if file is not None)
            raise _unseen("tlsCert, tlsKey", f"a certificate with its key, unencrypted, in {files}", error) from error
        return made


def _unseen(option: str, expected: str, error: Exception) -> ConfigError:
    return ConfigError(f"{option}: expected {expected}, on host {socket.gethostname()}, found: {error}")
