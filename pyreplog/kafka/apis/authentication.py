"""SaslHandshake and SaslAuthenticate: a client chooses a mechanism, and authenticates."""

from __future__ import annotations

import logging

from pyreplog.errors import AuthenticationError
from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.sasl import SaslSession
from pyreplog.kafka.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyreplog.partition.protocol.error_codes import ErrorCode

logger = logging.getLogger(__name__)


def handle_sasl_handshake(api: ApiContext, request: RequestContext, message: SaslHandshakeRequest) -> Outcome:
    """Begin an exchange with the mechanism that the client chose."""
    session = request.session
    if not isinstance(session, SaslSession) or session.user:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
    is_known = session.choose(message.mechanism)
    code = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return SaslHandshakeResponse(code, session.mechanisms)


def handle_sasl_authenticate(api: ApiContext, request: RequestContext, message: SaslAuthenticateRequest) -> Outcome:
    """Answer a message of the current exchange."""
    session = request.session
    if not isinstance(session, SaslSession) or not session.is_exchanging:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, "expected a SaslHandshake before")
    try:
        answer = session.receive(bytes(message.auth_bytes))
    except AuthenticationError as error:
        logger.warning("Kafka client %s: authentication failed: %s", request.peer, error)
        return SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "authentication failed")
    return SaslAuthenticateResponse(auth_bytes=answer)
