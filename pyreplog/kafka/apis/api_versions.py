"""ApiVersions: the served APIs and their versions (KIP-35, KIP-511)."""

from __future__ import annotations

from collections.abc import Mapping

from pyreplog.kafka.wire.messages import ApiVersionsApiVersion, ApiVersionsResponse
from pyreplog.kafka.wire.schema import ANNOUNCED, ApiKey
from pyreplog.partition.protocol.error_codes import ErrorCode

_FIRST_SERVED: dict[int, int] = {ApiKey.SASL_HANDSHAKE: 1}
"""First served versions that differ from the schema: after SaslHandshake v0 a client sends bytes that are no
requests."""


def versions_of(key: int) -> tuple[int, int]:
    """Return the first and the last announced version of an API."""
    first, last = ANNOUNCED[key]
    return max(first, _FIRST_SERVED.get(key, first)), last


def describe_versions(served: Mapping[int, object], code: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
    """Return the served APIs with their versions.

    Args:
        served: mapping whose keys are the API keys.
        code: UNSUPPORTED_VERSION if the client's version of ApiVersions is not served; it then chooses another one.
    """
    keys = tuple(ApiVersionsApiVersion(key, *versions_of(key)) for key in sorted(served))
    return ApiVersionsResponse(error_code=code, api_keys=keys)
