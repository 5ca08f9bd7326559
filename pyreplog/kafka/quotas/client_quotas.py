"""Quotas of users and clients in the metadata store, and the choice of the one that applies to a client.

A quota belongs to an entity: a user, a client id, or a user with a client id, each by its name or by default. For each
kind of quota, the one of the most specific entity applies (KIP-13, KIP-55, KIP-124, KIP-546). The format is in
FORMAT.md, "Partitions in the metadata store".
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from pyreplog.errors import InvalidArgumentError
from pyreplog.metadata import values
from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue

CLIENT_QUOTAS = "/partitions/client_quotas"
PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
)
QUOTAS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
"""The kinds of quotas: bytes per second produced, bytes per second fetched, and percentage of one thread's time."""
DEFAULT = ""
"""The name of the default entity: all users, or client ids, without a quota of their own."""
ANONYMOUS = "ANONYMOUS"
"""The user of an unauthenticated connection, as named by Kafka."""
_RATE_MAX = (1 << 63) - 1
_NAME_MAX = 32_767


class QuotaEntity(NamedTuple):
    """The clients that a quota limits. At least one of the two fields is not None.

    Attributes:
        user: name of the user; DEFAULT: all users without a quota of their own; None: any user.
        client_id: client id; DEFAULT and None likewise.
    """

    user: str | None = None
    client_id: str | None = None


def check_entity(entity: QuotaEntity) -> None:
    """Raise InvalidArgumentError if an entity is not valid."""
    if entity.user is None and entity.client_id is None:
        raise InvalidArgumentError("entity: expected a user, a client id, or both, found neither")
    for kind, name in zip(("user", "client-id"), entity, strict=True):
        if name is not None and len(name.encode()) > _NAME_MAX:
            raise InvalidArgumentError(f"{kind}: expected at most {_NAME_MAX} bytes, found {len(name.encode())}")


def check_quota(kind: str, value: float) -> None:
    """Raise InvalidArgumentError if a kind of quota is unknown, or its value not valid."""
    if kind not in QUOTAS:
        raise InvalidArgumentError(f"expected a quota of {', '.join(QUOTAS)}, found {kind[:80]!r}")
    if not math.isfinite(value) or value <= 0:
        raise InvalidArgumentError(f"{kind}: expected a number above 0, found {value}")
    if kind != REQUEST_PERCENTAGE and (value != int(value) or value > _RATE_MAX):
        raise InvalidArgumentError(f"{kind}: expected a whole number of bytes a second, found {value}")


@dataclass(frozen=True, kw_only=True)
class ClientQuota(MetadataValue):
    """The quotas of one entity in the metadata store.

    Attributes:
        user: see `QuotaEntity`.
        client_id: see `QuotaEntity`.
        quotas: value of each kind, at least one.
    """

    KIND: ClassVar[str] = "client quota"

    user: str | None = None
    client_id: str | None = None
    quotas: Mapping[str, float] = field(default_factory=dict)

    @property
    def entity(self) -> QuotaEntity:
        """The clients that the quotas limit."""
        return QuotaEntity(self.user, self.client_id)

    def _encode_fields(self) -> dict[str, Any]:
        return {**super()._encode_fields(), "quotas": dict(self.quotas)}

    @classmethod
    def _decode_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        names = {name: fields.get(name) for name in ("user", "client_id")}
        if any(name is not None and type(name) is not str for name in names.values()):
            raise ValueError(f"expected names or null, found {str(names)[:160]}")
        quotas = {kind: float(value) for kind, value in values.field(fields, "quotas", dict).items()}
        decoded = {**names, "quotas": quotas}
        try:
            check_entity(QuotaEntity(**names))
            for kind, value in quotas.items():
                check_quota(kind, value)
        except InvalidArgumentError as error:
            raise ValueError(str(error)) from error
        return decoded


def quota_key(entity: QuotaEntity) -> str:
    """Return the key of an entity's quotas. It is a hash, because names may contain characters that keys may not."""
    return f"{CLIENT_QUOTAS}/{hashlib.sha256(json.dumps(list(entity)).encode()).hexdigest()[:32]}"


def alter_client_quota(
    store: MetadataStore, entity: QuotaEntity, changes: Mapping[str, float | None]
) -> Mapping[str, float]:  # fmt: skip
    """Change the quotas of an entity. The call may be repeated after an OutcomeUnknownError.

    Args:
        store: metadata store.
        entity: the clients that the quotas limit.
        changes: values by kind, bytes per second or percentages; None: remove the quota. Other kinds are not changed.

    Returns:
        All quotas of the entity after the change.

    Raises:
        InvalidArgumentError: a kind is unknown, or a value is out of its bounds; nothing was changed.
        ReplogError: errors of the store.

    Example:
        ```python
        alter_client_quota(store, QuotaEntity(user="billing"), {"producer_byte_rate": 1 << 20})
        ```
    """
    check_entity(entity)
    for kind, value in changes.items():
        if value is not None:
            check_quota(kind, value)
        elif kind not in QUOTAS:
            raise InvalidArgumentError(f"expected a quota of {', '.join(QUOTAS)}, found {kind[:80]!r}")

    def changed(stored: bytes | None) -> bytes | None:
        before = ClientQuota(**entity._asdict()) if stored is None else ClientQuota.decode(stored)
        quotas = {kind: float(value) for kind, value in {**before.quotas, **changes}.items() if value is not None}
        if quotas == before.quotas:
            return stored
        return replace(before, quotas=quotas).encode() if quotas else None

    stored = change_key(store, quota_key(entity), changed)
    return {} if stored is None else ClientQuota.decode(stored).quotas


class QuotaTable:
    """All quotas, for looking up which one applies to a client. Immutable.

    Args:
        quotas: the quotas in the metadata store.
    """

    def __init__(self, quotas: Iterable[ClientQuota] = ()) -> None:
        self._quotas = {each.entity: each.quotas for each in quotas}

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def items(self) -> Iterable[tuple[QuotaEntity, Mapping[str, float]]]:
        """Return all entities with their quotas."""
        return self._quotas.items()

    def quotas(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the quotas of exactly this entity, without defaults."""
        return self._quotas.get(entity, {})

    def limit(self, kind: str, user: str, client_id: str) -> tuple[float, QuotaEntity] | None:
        """Return the quota of a kind that applies to a client, with the entity that shares it; None: there is none.

        Args:
            kind: one of `QUOTAS`.
            user: user of the client.
            client_id: client id of the client.
        """
        for name in (user, DEFAULT):
            for wanted, shared in (
                (QuotaEntity(name, client_id), QuotaEntity(user, client_id)),
                (QuotaEntity(name, DEFAULT), QuotaEntity(user, client_id)),
                (QuotaEntity(name, None), QuotaEntity(user, None)),
            ):
                value = self._quotas.get(wanted, {}).get(kind)
                if value is not None:
                    return value, shared
        for name in (client_id, DEFAULT):
            value = self._quotas.get(QuotaEntity(None, name), {}).get(kind)
            if value is not None:
                return value, QuotaEntity(None, client_id)
        return None
