"""What a write is asked for: options of `df.write.format("pyreplog")`, typed and checked before anything connects."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyreplog.errors import ConfigError, ReplogError
from pyreplog.net.credentials import Credentials
from pyreplog.topic.model.names import check_name

SECRET = "PYREPLOG_SECRET"
"""Environment variable: the servers' secret, where no option gives it."""

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"

_KNOWN = ("cluster", "deliveryGuarantee", "secret", "topic", "secretFile", "tlsCa", "tlsCert", "tlsKey")
_OF_SPARK = {"checkpointlocation"}  # handed to sinks with their own
_URL = re.compile(r"pyreplog://[^/\s]+/?")


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of a write; `of` makes them from Spark's.

    cluster: URL of topic servers. topic: where all rows go; None: a column says it. access: to the servers.
    is_exactly_once: topics must deduplicate; without it they need not, and a row that is tried again may be there
    twice.
    """

    cluster: str
    topic: str | None = None
    credentials: Credentials = field(default_factory=Credentials)
    is_exactly_once: bool = True

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """From Spark's options, whose names it does not tell apart by case. ConfigError names the option at fault."""
        given = {name.lower(): text for name, text in options.items() if name.lower() not in _OF_SPARK}
        if "path" in given:
            raise ConfigError(
                f"path: topics are written through their servers; expected none, and cluster=pyreplog://host:port, "
                f"found {given['path']!r}"
            )
        unknown = sorted(given.keys() - {name.lower() for name in _KNOWN})
        if unknown:
            raise ConfigError(f"unknown option {unknown[0]!r}; for writing there are {', '.join(_KNOWN)}")
        return cls(
            cluster=_cluster(given.get("cluster")),
            topic=_topic(given["topic"]) if "topic" in given else None,
            credentials=_credentials(given),
            is_exactly_once=_is_exactly_once(given.get("deliveryguarantee", EXACTLY_ONCE)),
        )


def _cluster(text: str | None) -> str:
    if text is None or _URL.fullmatch(text.strip()) is None:
        raise ConfigError(f"cluster: expected the URL of topic servers, pyreplog://host:port, found {text!r}")
    return text.strip()


def _credentials(given: Mapping[str, str]) -> Credentials:
    files = {name: given.get(name.replace("_", "")) for name in ("secret_file", "tls_ca", "tls_cert", "tls_key")}
    for name, file in files.items():
        if file is not None and not file.strip():
            raise ConfigError(f"{name.replace('_', '')}: expected the name of a file, found nothing")
    secret = given.get("secret") or (os.environ.get(SECRET) if files["secret_file"] is None else None)
    return Credentials(secret=secret.encode() if secret else None, **files)


def _topic(text: str) -> str:
    try:
        return check_name(text)
    except ReplogError as error:
        raise ConfigError(f"topic: {error}") from error


def _is_exactly_once(text: str) -> bool:
    chosen = text.strip().lower()
    if chosen not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise ConfigError(f"deliveryGuarantee: expected {EXACTLY_ONCE} or {AT_LEAST_ONCE}, found {text!r}")
    return chosen == EXACTLY_ONCE
