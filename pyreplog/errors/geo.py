"""Errors of geo-replication."""

from __future__ import annotations

from pyreplog.errors.base import OutcomeUnknownError, ReplogError


class GeoError(ReplogError):
    """Base of the errors of geo-replication.

    Attributes:
        cluster: name of the remote cluster.
    """

    def __init__(self, cluster: str, message: str) -> None:
        self.cluster, self.message = cluster, message
        super().__init__(f"cluster {cluster}: {message}")

    def __reduce__(self) -> tuple[type[GeoError], tuple[str, str]]:
        return type(self), (self.cluster, self.message)


class NoSuchClusterError(GeoError):
    """No remote cluster of that name was added. Nothing was done."""

    exit_code = 2


class ClusterExistsError(GeoError):
    """The name is in use for another cluster, the cluster has another name already, or it is this cluster itself.

    Nothing was done.
    """

    exit_code = 2


class ClusterInUseError(GeoError):
    """Policies name the cluster that was to be removed; the message names some. Nothing was done."""

    exit_code = 3


class HandoverError(GeoError):
    """A subscription was not handed over to the cluster; the message gives the reason.

    Its consumers in this cluster go on. Messages that they held for longer than `grace` were taken from them, and are
    delivered to them again, unless they acknowledge them first.
    """

    retriable = True
    exit_code = 3


class HandoverUnconfirmedError(GeoError, OutcomeUnknownError):
    """A subscription is handed over to the cluster, which has not confirmed it.

    Its consumers in this cluster get no more messages. Consumers of the other cluster get them as soon as the clusters
    are connected. Order the handover again, to wait for that; or take the subscription over in this cluster, if the
    other cluster is lost.
    """

    exit_code = 3


class ClusterUnreachableError(GeoError):
    """No server of the remote cluster answers. Nothing was done."""

    retriable = True
    exit_code = 7


class ClusterCredentialsError(GeoError):
    """A file with credentials cannot be used, or the remote servers refuse them. The message names the file.

    It never has a secret in it. Nothing was done.
    """

    exit_code = 2
