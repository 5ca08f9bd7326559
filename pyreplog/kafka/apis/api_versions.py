"""ApiVersions: what the listener serves (KIP-35, KIP-511)."""

from __future__ import annotations

from collections.abc import Mapping

from pyreplog.kafka.wire.messages import ApiVersionsApiVersion, ApiVersionsResponse
from pyreplog.kafka.wire.schema import ANNOUNCED, ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode

_FIRST_SERVED: dict[int, int] = {ApiKey.SASL_HANDSHAKE: 1}
"""First versions, where an earlier one is not served: what follows SaslHandshake of version 0 are no requests."""


def versions_of(key: int) -> tuple[int, int]:
    """Return the first and the last version of an API that is announced."""
    first, last = ANNOUNCED[key]
    return max(first, _FIRST_SERVED.get(key, first)), last


def describe_versions(served: Mapping[int, object], code: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
    """Return the APIs that are served, with their versions.

    Args:
        served: a mapping whose keys are those of the APIs.
        code: UNSUPPORTED_VERSION: the client asked in a version that is not served; it learns which ones are.
    """
    keys = tuple(ApiVersionsApiVersion(key, *versions_of(key)) for key in sorted(served))
    return ApiVersionsResponse(error_code=code, api_keys=keys)
