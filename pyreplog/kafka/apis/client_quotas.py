"""DescribeClientQuotas and AlterClientQuotas: quotas of users and client ids (KIP-546)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pyreplog.future import transform
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.apis.refusals import RefusedError, outcome_of
from pyreplog.kafka.quotas.client_quotas import (
    DEFAULT,
    QuotaEntity,
    alter_client_quota,
    check_quota,
)
from pyreplog.kafka.wire.messages import (
    AlterClientQuotasEntityData,
    AlterClientQuotasEntryData,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    DescribeClientQuotasComponentData,
    DescribeClientQuotasEntityData,
    DescribeClientQuotasEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasValueData,
)
from pyreplog.partition.protocol.error_codes import ErrorCode

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_TYPES = (_USER, _CLIENT_ID)
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


# ---- AlterClientQuotas ----------------------------------------------------------------------------------------


def handle_alter_client_quotas(api: ApiContext, request: RequestContext, message: AlterClientQuotasRequest) -> Outcome:
    """Change quotas. The response is sent when this broker knows the changes, or after a time-out."""
    altered = api.run(partial(_alter, api, message))

    def answer(outcomes: list[tuple[ErrorCode, str | None]]) -> Any:
        entries = [
            AlterClientQuotasResponseEntryData(*outcome, entry.entity)
            for outcome, entry in zip(outcomes, message.entries, strict=True)
        ]
        response = AlterClientQuotasResponse(entries=entries)
        made = [entry for (code, _), entry in zip(outcomes, message.entries, strict=True) if not code]
        if message.validate_only or not made:
            return response
        return api.answer_when_known(response, lambda: all(_is_known(api, entry) for entry in made))

    return transform(altered, answer)


def _alter(api: ApiContext, message: AlterClientQuotasRequest) -> list[tuple[ErrorCode, str | None]]:
    times = Counter(
        frozenset((each.entity_type, each.entity_name) for each in entry.entity) for entry in message.entries
    )

    def alter(entry: AlterClientQuotasEntryData) -> None:
        if times[frozenset((each.entity_type, each.entity_name) for each in entry.entity)] > 1:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "the request has this entity more than once")
        entity, changes = _entity_of(entry.entity), _changes_of(entry)
        for kind, value in changes.items():
            check_quota(kind, 1.0 if value is None else value)
        if not message.validate_only:
            alter_client_quota(api.store, entity, changes)

    return [outcome_of(partial(alter, entry)) for entry in message.entries]


def _entity_of(parts: Sequence[AlterClientQuotasEntityData]) -> QuotaEntity:
    names: dict[str, str] = {}
    for part in parts:
        if part.entity_type not in _TYPES:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"entity: expected {' and '.join(_TYPES)}, found {part.entity_type[:80]!r}",
            )
        if part.entity_type in names:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"entity: expected one {part.entity_type}, found several")
        if part.entity_name == DEFAULT:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{part.entity_type}: expected a name, or null: by default")
        names[part.entity_type] = DEFAULT if part.entity_name is None else part.entity_name
    if not names:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "entity: expected a user, a client id, or both, found neither")
    return QuotaEntity(names.get(_USER), names.get(_CLIENT_ID))


def _changes_of(entry: AlterClientQuotasEntryData) -> dict[str, float | None]:
    changes: dict[str, float | None] = {}
    for operation in entry.ops:
        if operation.key in changes:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{operation.key}: expected one change, found several")
        changes[operation.key] = None if operation.remove else operation.value
    return changes


def _is_known(api: ApiContext, entry: AlterClientQuotasEntryData) -> bool:
    quotas = api.quotas.table.quotas(_entity_of(entry.entity))
    return all(quotas.get(kind) == value for kind, value in _changes_of(entry).items())


# ---- DescribeClientQuotas -------------------------------------------------------------------------------------


def handle_describe_client_quotas(
    api: ApiContext, request: RequestContext, message: DescribeClientQuotasRequest
) -> Outcome:  # fmt: skip
    """Return the quotas of the entities that match a filter."""
    try:
        wanted = _filter_of(message.components)
    except RefusedError as error:
        return DescribeClientQuotasResponse(0, error.code, error.message, None)
    entries = []
    for entity, quotas in sorted(api.quotas.table.items(), key=lambda item: _order(item[0])):
        names = {kind: name for kind, name in zip(_TYPES, entity, strict=True) if name is not None}
        is_whole = not message.strict or names.keys() == wanted.keys()
        if is_whole and all(kind in names and name in (None, names[kind]) for kind, name in wanted.items()):
            parts = [DescribeClientQuotasEntityData(kind, name or None) for kind, name in names.items()]
            values = [DescribeClientQuotasValueData(*item) for item in sorted(quotas.items())]
            entries.append(DescribeClientQuotasEntryData(parts, values))
    return DescribeClientQuotasResponse(0, ErrorCode.NONE, None, entries)


def _order(entity: QuotaEntity) -> list[tuple[bool, str]]:
    return [(name is not None, name or "") for name in entity]


def _filter_of(components: Iterable[DescribeClientQuotasComponentData]) -> dict[str, str | None]:
    """Return the name to match for each entity type; None: any name. Quotas of IP addresses do not exist."""
    wanted: dict[str, str | None] = {}
    for component in components:
        kind, match = component.entity_type, component.match
        if kind in wanted:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"expected one component of {kind}, found several")
        if kind not in (*_TYPES, _IP):
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"expected {', '.join(_TYPES)}, found {kind[:80]!r}")
        if component.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"match_type: expected 0 to 2, found {component.match_type}")
        if (match is not None) != (component.match_type == _EXACT):
            raise RefusedError(ErrorCode.INVALID_REQUEST, "match: expected a name with match_type 0, and with no other")
        wanted[kind] = (
            match if component.match_type == _EXACT else DEFAULT if component.match_type == _DEFAULT else None
        )
    if _IP in wanted and len(wanted) > 1:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "expected addresses alone, or users and client ids")
    return wanted
