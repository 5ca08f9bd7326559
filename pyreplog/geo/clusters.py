"""The other clusters that topics are sent to, in this cluster's metadata store."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyreplog.errors import (
    AuthenticationError,
    ClusterCredentialsError,
    ClusterExistsError,
    ClusterUnreachableError,
    CorruptionError,
    DamagedMessageError,
    GeoError,
    HandshakeError,
    InvalidArgumentError,
    InvalidMessageError,
    InvalidMetadataError,
    NoSuchClusterError,
    ReplogError,
    WrongClusterError,
    WrongServiceError,
)
from pyreplog.geo.revision import raise_revision
from pyreplog.metadata.changes import change_key, delete_key
from pyreplog.metadata.layout import cluster_id
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue, field
from pyreplog.net.handshake import Secret, parse_secret
from pyreplog.net.tls import TLS_REFUSED
from pyreplog.regular_files import PEM_FILE_MAX, SECRET_FILE_MAX, check_regular, read_regular
from pyreplog.topic.client.remote.client import Client, connect
from pyreplog.topic_names import check_name, quote_name, unquote_name

CLUSTERS = "/geo/clusters"
PROBE_S = 10.0
"""Seconds within which a server of a cluster that is added has to answer."""

RENEWED_S = 20
"""Seconds within which the `ReplicatorManager` has changed credential files read again."""

_FILES = ("secret_file", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, kw_only=True)
class RemoteCluster(MetadataValue):
    """Another cluster, with the addresses of its servers and credentials; made by `GeoReplication.add_cluster`.

    Each server of this cluster reads the files on its own machine.

    Attributes:
        uuid: the 16 bytes that identify it, as 32 hexadecimal digits.
        url: its topic servers, "pyreplog://host:port,host:port".
        secret_file: path of the file with the secret of its servers; None: they need no secret.
        tls_ca: path of the CA certificates for its servers; None: no TLS.
        tls_cert: path of the client certificate of this cluster's servers; None: they have none.
        tls_key: path of the private key of `tls_cert`; None: the key is in `tls_cert`.
    """

    KIND: ClassVar[str] = "remote cluster"

    uuid: str
    url: str
    secret_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def id(self) -> bytes:
        """The 16 bytes that identify the cluster."""
        return bytes.fromhex(self.uuid)

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name in _FILES:
            if fields.get(name) is not None:
                field(fields, name, str)
        if len(bytes.fromhex(field(fields, "uuid", str))) != 16:
            raise ValueError(f"uuid: expected 16 bytes, found {fields['uuid']!r}")
        field(fields, "url", str)
        return fields

    def connect(self, name: str, timeout: float) -> Client:
        """Return a client of the cluster's topic servers, which connects at its first call.

        Args:
            name: name of the cluster, for errors.
            timeout: most seconds that its calls wait.

        Raises:
            ClusterCredentialsError: a credential file cannot be used.
            InvalidArgumentError: the URL is malformed.
        """
        return connect(self.url, secret=self.secret(name), tls=self.tls(name), timeout=timeout)

    def file_stamps(self) -> tuple[object, ...]:
        """Return a value that differs once a credential file was changed."""
        stamps: list[object] = []
        for path in (self.secret_file, self.tls_ca, self.tls_cert, self.tls_key):
            try:
                status = None if path is None else Path(path).stat()
            except OSError as error:
                stamps.append(error.errno)
            else:
                stamps.append(status and (status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(stamps)

    def secret(self, name: str) -> Secret | None:
        """Read the file with the secret. Raises ClusterCredentialsError, which names the file."""
        if self.secret_file is None:
            return None
        try:
            return parse_secret(read_regular(self.secret_file, SECRET_FILE_MAX))
        except (OSError, CorruptionError, InvalidArgumentError) as error:
            raise ClusterCredentialsError(
                name, f"expected the secret of its servers in {self.secret_file}: {_reason(error)}"
            ) from error

    def tls(self, name: str) -> ssl.SSLContext | None:
        """Read the certificates. Raises ClusterCredentialsError, which names the file."""
        if self.tls_ca is None:
            if self.tls_cert is not None or self.tls_key is not None:
                raise ClusterCredentialsError(name, "tls_cert and tls_key: expected with tls_ca, found without")
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        path = self.tls_ca
        try:
            check_regular(self.tls_ca, PEM_FILE_MAX)
            context.load_verify_locations(self.tls_ca)
            if self.tls_cert is not None:
                path = self.tls_cert if self.tls_key is None else f"{self.tls_cert} and {self.tls_key}"
                for file in (self.tls_cert, self.tls_key or self.tls_cert):
                    check_regular(file, PEM_FILE_MAX)
                context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (OSError, ValueError, CorruptionError) as error:
            raise ClusterCredentialsError(
                name, f"expected certificates, and an unencrypted key, in {path}: {_reason(error)}"
            ) from error
        return context


def _reason(error: Exception) -> str:
    """Return the text of an error without the path, which the message names already."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)


def cluster_key(name: str) -> str:
    """Return the key of a remote cluster. Raises the errors of `check_name`."""
    return f"{CLUSTERS}/{quote_name(check_name(name, 'cluster'))}"


def load_clusters(store: MetadataStore) -> dict[str, RemoteCluster | InvalidMetadataError]:
    """Return all remote clusters by name; an error stands for a value that cannot be read.

    Raises:
        ReplogError: errors of the store.
    """
    names = store.list(CLUSTERS)
    values = store.get_many([f"{CLUSTERS}/{name}" for name in names])
    clusters: dict[str, RemoteCluster | InvalidMetadataError] = {}
    for name, stored in zip(names, values, strict=True):
        if stored is not None:
            try:
                clusters[unquote_name(name)] = RemoteCluster.decode(stored.value)
            except InvalidMetadataError as error:
                clusters[unquote_name(name)] = error
    return clusters


def no_such_cluster(name: str, known: list[str]) -> NoSuchClusterError:
    """Return the error for an unknown cluster; its text lists the known ones."""
    names = ", ".join(sorted(known)) or "none"
    return NoSuchClusterError(name, f"it was not added; known clusters: {names}. Add it with `geo cluster add`")


def absolute_path(path: str | os.PathLike[str] | None) -> str | None:
    """Return the path of a credential file in the form in which it is stored."""
    return None if path is None else str(Path(path).absolute())


def probe(name: str, cluster: RemoteCluster, timeout: float = PROBE_S) -> str:
    """Ask the servers of a cluster for its uuid, 32 hexadecimal digits.

    Raises:
        ClusterUnreachableError: no server answers.
        ClusterCredentialsError: a file cannot be used, or the servers refuse the credentials.
        InvalidArgumentError: the URL is malformed.
    """
    with cluster.connect(name, timeout) as client:
        try:
            return client.cluster_id().hex()
        except ReplogError as error:
            raise connection_error(name, cluster, error) from error


def refused_credentials(error: BaseException | None) -> AuthenticationError | None:
    """Return the refusal of a secret or a certificate that caused the error of a connection; None: another cause."""
    while error is not None and not isinstance(error, HandshakeError):
        error = error.__cause__
    return error if isinstance(error, AuthenticationError) else None


def lasting_error(error: BaseException | None) -> ReplogError | None:
    """Return the refused handshake, or the malformed answer, that caused an error of a connection; None: another cause.

    A retry mends neither: somebody has to check the URL, the credentials or the servers.
    """
    while error is not None and not isinstance(error, HandshakeError | InvalidMessageError):
        error = error.__cause__
    if error is None or error.retriable or isinstance(error, DamagedMessageError):
        return None
    return error


def _is_of_other_cluster(error: BaseException | None) -> bool:
    """Return whether a connection failed because servers of another cluster answered."""
    while error is not None and not isinstance(error, WrongClusterError):
        error = error.__cause__
    return error is not None


def connection_error(name: str, cluster: RemoteCluster, error: ReplogError) -> GeoError:
    """Return the error for a failed connection to a cluster; its text names the file to look at, and the remedy."""
    refusal = refused_credentials(error)
    if refusal is not None and str(refusal).startswith(TLS_REFUSED):
        own = "" if cluster.tls_cert is None else f" They must accept {cluster.tls_cert}."
        return ClusterCredentialsError(
            name, f"certificates are refused: {refusal}. The certificates of its servers must be valid, and signed by "
            f"a CA in {cluster.tls_ca}.{own} New files are read within {RENEWED_S} s here, and with SIGHUP there",
        )  # fmt: skip
    if refusal is not None:
        source = cluster.secret_file or "no file: give the secret of its servers with secret_file"
        return ClusterCredentialsError(name, f"its servers refuse the secret in {source}: {refusal}")
    if _is_of_other_cluster(error):
        return ClusterUnreachableError(
            name, f"the servers at {cluster.url} are those of another cluster: {error}. Check the URL. If the cluster "
            "was lost and made anew, remove it (`geo cluster remove --force`) and add it again: docs/geo.md, 'A region "
            "that lost its disk'",
        )  # fmt: skip
    cause = lasting_error(error)
    if type(cause) in (HandshakeError, WrongServiceError):
        return ClusterUnreachableError(
            name, f"the server at {cluster.url} is not one of topics, or answers nonsense: {cause}. Check the URL: it "
            "must have the addresses that `pyreplog serve` prints there",
        )  # fmt: skip
    if isinstance(error, InvalidMessageError):
        text = f"its servers at {cluster.url} have an older version without geo-replication: upgrade them"
        return ClusterUnreachableError(name, text)
    return ClusterUnreachableError(
        name, f"no server at {cluster.url} answers: {error}. Check the URL, that `pyreplog serve` runs there, and that "
        "TLS is used by both sides or by neither",
    )  # fmt: skip


def add_cluster(store: MetadataStore, name: str, cluster: RemoteCluster) -> None:
    """Store a remote cluster, or the new URL and files of a cluster that was added before.

    Raises:
        ClusterExistsError: another cluster has the name, the cluster has another name, or it is this cluster.
        ReplogError: errors of the store.
    """
    if cluster.uuid == cluster_id(store).hex():
        raise ClusterExistsError(
            name,
            f"{cluster.url} is this cluster itself, or a copy of its files, {cluster.uuid}: give the URL of the "
            "other one. A copy cannot be told from the original: make a new cluster in its place, and replicate to it",
        )
    key = cluster_key(name)
    _check_other_names(store, name, cluster)

    def change(value: bytes | None) -> bytes:
        if value is None:
            return cluster.encode()
        known = RemoteCluster.decode(value)
        if known.uuid != cluster.uuid:
            raise ClusterExistsError(
                name, f"the name is in use for the cluster {known.uuid} at {known.url}; {cluster.url} is "
                f"{cluster.uuid}: choose another name. If that cluster was lost and made anew, remove it first "
                "(`geo cluster remove --force`); docs/geo.md, 'A region that lost its disk', says how the new one "
                "gets its former messages",
            )  # fmt: skip
        changed = RemoteCluster(**{**vars(cluster), "kept": known.kept})
        return value if changed == known else changed.encode()

    change_key(store, key, change)
    try:
        _check_other_names(store, name, cluster)  # another process may have added the cluster under another name
    except ClusterExistsError:
        delete_key(store, key)
        raise
    finally:
        raise_revision(store)


def _check_other_names(store: MetadataStore, name: str, cluster: RemoteCluster) -> None:
    for other, known in load_clusters(store).items():
        if other != name and isinstance(known, RemoteCluster) and known.uuid == cluster.uuid:
            raise ClusterExistsError(
                name,
                f"{cluster.url} is the cluster {cluster.uuid}, which has the name {other} already, or a copy of "
                "its files: use that name; if it is a copy, make a new cluster in its place",
            )


def remove_cluster(store: MetadataStore, name: str) -> None:
    """Delete a remote cluster. Raises NoSuchClusterError, and errors of the store."""
    key = cluster_key(name)
    if store.get(key) is None:
        raise no_such_cluster(name, [unquote_name(known) for known in store.list(CLUSTERS)])
    delete_key(store, key)
    raise_revision(store)
