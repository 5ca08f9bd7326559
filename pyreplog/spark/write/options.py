"""Options of `df.write.format("pyreplog")`, parsed and checked before anything connects."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyreplog.errors import ConfigError, ReplogError
from pyreplog.net.credentials import Credentials
from pyreplog.topic_names import check_name

SECRET = "PYREPLOG_SECRET"
"""Environment variable with the secret of the servers, for when no option sets it."""

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"

_KNOWN = ("cluster", "deliveryGuarantee", "secret", "topic", "secretFile", "tlsCa", "tlsCert", "tlsKey")
_OF_SPARK = {"checkpointlocation"}  # Spark passes it along with the sink's options
_URL = re.compile(r"pyreplog://[^/\s]+/?")


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of a write; `of` makes them from those of Spark.

    cluster: URL of topic servers. topic: topic of all rows; None: a column names it. credentials: for the servers.
    is_exactly_once: require topics that deduplicate; otherwise a row that is written again may exist twice.
    """

    cluster: str
    topic: str | None = None
    credentials: Credentials = field(default_factory=Credentials)
    is_exactly_once: bool = True

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Make options from those of Spark, which ignores the case of names.

        Raises ConfigError, which names the option.
        """
        texts = {name.lower(): text for name, text in options.items() if name.lower() not in _OF_SPARK}
        if "path" in texts:
            raise ConfigError(
                f"path: topics are written through their servers; expected cluster=pyreplog://host:port instead, "
                f"found {texts['path']!r}"
            )
        unknown = sorted(texts.keys() - {name.lower() for name in _KNOWN})
        if unknown:
            raise ConfigError(f"unknown option {unknown[0]!r}; for writing there are {', '.join(_KNOWN)}")
        return cls(
            cluster=_cluster(texts.get("cluster")),
            topic=_topic(texts["topic"]) if "topic" in texts else None,
            credentials=_credentials(texts),
            is_exactly_once=_is_exactly_once(texts.get("deliveryguarantee", EXACTLY_ONCE)),
        )


def _cluster(text: str | None) -> str:
    if text is None or _URL.fullmatch(text.strip()) is None:
        raise ConfigError(f"cluster: expected the URL of topic servers, pyreplog://host:port, found {text!r}")
    return text.strip()


def _credentials(texts: Mapping[str, str]) -> Credentials:
    files = {name: texts.get(name.replace("_", "")) for name in ("secret_file", "tls_ca", "tls_cert", "tls_key")}
    for name, file in files.items():
        if file is not None and not file.strip():
            raise ConfigError(f"{name.replace('_', '')}: expected the name of a file, found nothing")
    secret = texts.get("secret") or (os.environ.get(SECRET) if files["secret_file"] is None else None)
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
