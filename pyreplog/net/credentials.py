"""Credentials: secret and certificates of a client as names of files, so that they can be sent to other hosts."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field

from pyreplog.errors import ConfigError, CorruptionError
from pyreplog.net.handshake import Secret, parse_secret
from pyreplog.regular_files import PEM_FILE_MAX, SECRET_FILE_MAX, check_regular, read_regular


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Secret and TLS files for connections to servers or bookies. Each process reads the files itself, by the same
    paths.

    All certificates and keys are PEM.

    Attributes:
        secret: secret that the servers were started with.
        secret_file: file with the secret, instead of `secret`; a line feed at its end does not count.
        tls_ca: certificates that have signed those of the servers; set it to use TLS.
        tls_cert: this client's certificate with its chain.
        tls_key: private key of the certificate, if it is not in the same file.

    Raises:
        ConfigError: the fields contradict each other.
    """

    secret: bytes | None = field(default=None, repr=False)
    secret_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        for name, value, other, needed in (
            ("tlsCert", self.tls_cert, "tlsCa", self.tls_ca),
            ("tlsKey", self.tls_key, "tlsCert", self.tls_cert),
        ):
            if value is not None and needed is None:
                raise ConfigError(f"{name}: expected with {other}, found without")
        if self.secret is not None and self.secret_file is not None:
            raise ConfigError("secret, secretFile: expected at most one of them, found 2")

    def read_secret(self) -> bytes | Secret | None:
        """Return the secret; None: none is set.

        Raises ConfigError if this host does not see the file, or it is empty.
        """
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
        """Return a TLS context for a client; None: no TLS.

        Raises ConfigError if this host does not see a file, or it is invalid.
        """
        if self.tls_ca is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            check_regular(self.tls_ca, PEM_FILE_MAX)
            context.load_verify_locations(self.tls_ca)
        except (OSError, ValueError, CorruptionError) as error:
            raise _unseen("tlsCa", f"certificates in {self.tls_ca}", error) from error
        if self.tls_cert is None:
            return context
        try:  # with no password an encrypted key is refused; OpenSSL would ask the terminal
            for file in (self.tls_cert, self.tls_key):
                if file is not None:
                    check_regular(file, PEM_FILE_MAX)
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (OSError, ValueError, CorruptionError) as error:
            files = " and ".join(file for file in (self.tls_cert, self.tls_key) if file is not None)
            raise _unseen("tlsCert, tlsKey", f"a certificate with its key, unencrypted, in {files}", error) from error
        return context


def _unseen(option: str, expected: str, error: Exception) -> ConfigError:
    return ConfigError(f"{option}: expected {expected}, on host {socket.gethostname()}, found: {error}")
