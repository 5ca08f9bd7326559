"""DescribeAcls, CreateAcls, DeleteAcls: the listener has no ACLs, and answers like Kafka without an authorizer."""

from __future__ import annotations

from pyreplog.kafka.apis.context import ApiContext, Outcome, RequestContext
from pyreplog.kafka.wire.messages import (
    CreateAclsAclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from pyreplog.partition.protocol.error_codes import ErrorCode

_REFUSAL = ErrorCode.SECURITY_DISABLED, "there are no ACLs: a user that is authenticated may do everything"


def handle_describe_acls(api: ApiContext, request: RequestContext, message: DescribeAclsRequest) -> Outcome:
    """Answer that ACLs are disabled."""
    return DescribeAclsResponse(0, *_REFUSAL)


def handle_create_acls(api: ApiContext, request: RequestContext, message: CreateAclsRequest) -> Outcome:
    """Refuse each new ACL."""
    return CreateAclsResponse(results=[CreateAclsAclCreationResult(*_REFUSAL)] * len(message.creations))


def handle_delete_acls(api: ApiContext, request: RequestContext, message: DeleteAclsRequest) -> Outcome:
    """Refuse each ACL filter."""
    return DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(*_REFUSAL)] * len(message.filters))
