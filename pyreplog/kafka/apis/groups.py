"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pyreplog.future import AppendFuture, all_done, transform
from pyreplog.kafka.apis.context import NO_OPERATIONS, ApiContext, Outcome, RequestContext
from pyreplog.kafka.groups import group_requests
from pyreplog.kafka.groups.group_requests import (
    DescribedGroup,
    GroupState,
    GroupType,
    JoinGroupResult,
    LeaveGroupResult,
    LeavingMember,
    ListGroupsResult,
    SyncGroupResult,
)
from pyreplog.kafka.wire.messages import (
    DeleteGroupsDeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsDescribedGroup,
    DescribeGroupsDescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupMemberResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from pyreplog.partition.protocol.error_codes import ErrorCode

T = TypeVar("T")

_INSTANCES_FROM, _KNOWN_IDS_FROM, _NAMES_MAY_BE_NULL_FROM, _SKIPPING_FROM = 5, 4, 7, 9
_SEVERAL_LEAVE_FROM = 3
_NOT_FOUND_FROM = 6
_LOADING_MS = 5_000
"""Maximum number of milliseconds for which a member that joins waits until the groups are loaded."""


def gather(futures: Sequence[AppendFuture[T]]) -> AppendFuture[list[T]]:
    """Return a future of all results in order; it fails with the error of the first failed future in that order."""
    return transform(all_done(futures), lambda _: [future.result() for future in futures])


def handle_join_group(api: ApiContext, request: RequestContext, message: JoinGroupRequest) -> Outcome:
    """Join a group. The response is sent when all members have joined, or the rebalance has timed out.

    A request waits for groups that are being loaded, because librdkafka repeats a refused one only after three seconds.
    """
    join = group_requests.JoinGroupRequest(
        member_id=message.member_id, instance_id=message.group_instance_id, client_id=request.client_id or "",
        client_host=host_of(request.peer), session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms if request.version > 0 else message.session_timeout_ms,
        protocol_type=message.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in message.protocols),
        requires_known_member_id=request.version >= _KNOWN_IDS_FROM,
        supports_skipping_assignment=request.version >= _SKIPPING_FROM,
    )  # fmt: skip
    groups, group_id = api.groups, message.group_id
    if not groups.is_loading(group_id):
        return transform(groups.join_group(group_id, join), partial(_joined, request.version))
    loaded = api.wait_until(lambda: not groups.is_loading(group_id), _LOADING_MS)
    joined: AppendFuture[JoinGroupResult] = transform(loaded, lambda _: groups.join_group(group_id, join))
    return transform(joined, partial(_joined, request.version))


def host_of(peer: str) -> str:
    """Return the host of a client's address in the format of Kafka's brokers."""
    return "/" + peer.rpartition(":")[0].strip("[]")


def _joined(version: int, result: JoinGroupResult) -> JoinGroupResponse:
    name = result.protocol_name
    if name is None and version < _NAMES_MAY_BE_NULL_FROM:
        name = ""
    members = [JoinGroupResponseMember(each.member_id, each.instance_id, each.metadata) for each in result.members]
    return JoinGroupResponse(
        error_code=result.code, generation_id=result.generation, protocol_type=result.protocol_type, protocol_name=name,
        leader=result.leader, skip_assignment=result.skip_assignment and version >= _SKIPPING_FROM,
        member_id=result.member_id, members=members,
    )  # fmt: skip


def handle_sync_group(api: ApiContext, request: RequestContext, message: SyncGroupRequest) -> Outcome:
    """Return a member's assignment. The response is sent when the group's leader has sent the assignments."""
    sync = group_requests.SyncGroupRequest(
        message.member_id, message.generation_id, message.group_instance_id, message.protocol_type,
        message.protocol_name, {each.member_id: bytes(each.assignment) for each in message.assignments},
    )  # fmt: skip

    def answer(result: SyncGroupResult) -> SyncGroupResponse:
        return SyncGroupResponse(0, result.code, result.protocol_type, result.protocol_name, result.assignment)

    return transform(api.groups.sync_group(message.group_id, sync), answer)


def handle_heartbeat(api: ApiContext, request: RequestContext, message: HeartbeatRequest) -> Outcome:
    """Extend the session of a member."""
    code = api.groups.heartbeat(message.group_id, message.member_id, message.generation_id, message.group_instance_id)
    return transform(code, lambda code: HeartbeatResponse(error_code=code))


def handle_leave_group(api: ApiContext, request: RequestContext, message: LeaveGroupRequest) -> Outcome:
    """Remove members from a group."""
    has_several = request.version >= _SEVERAL_LEAVE_FROM
    leaving = [LeavingMember(each.member_id, each.group_instance_id) for each in message.members]
    if not has_several:
        leaving = [LeavingMember(message.member_id)]

    def answer(result: LeaveGroupResult) -> LeaveGroupResponse:
        if has_several:
            return LeaveGroupResponse(0, result.code, [LeaveGroupMemberResponse(*each) for each in result.members])
        code = result.code
        if code is ErrorCode.NONE and result.members:
            code = result.members[0].code
        return LeaveGroupResponse(error_code=code)

    return transform(api.groups.leave_group(message.group_id, leaving), answer)


def handle_describe_groups(api: ApiContext, request: RequestContext, message: DescribeGroupsRequest) -> Outcome:
    """Describe groups that this broker coordinates."""

    def answer(groups: Sequence[DescribedGroup]) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(groups=[_described(request.version, group) for group in groups])

    return transform(gather([api.groups.describe_group(group_id) for group_id in message.groups]), answer)


def _described(version: int, group: DescribedGroup) -> DescribeGroupsDescribedGroup:
    code, text = group.code, None
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        code = code if version >= _NOT_FOUND_FROM else ErrorCode.NONE
        text = f"there is no group {group.group_id}" if version >= _NOT_FOUND_FROM else None
    members = [DescribeGroupsDescribedGroupMember(*each) for each in group.members]
    return DescribeGroupsDescribedGroup(
        code, text, group.group_id, group.state.value, group.protocol_type, group.protocol, members, NO_OPERATIONS
    )


def handle_list_groups(api: ApiContext, request: RequestContext, message: ListGroupsRequest) -> Outcome:
    """List the groups that this broker coordinates."""
    wanted = {name.lower() for name in message.states_filter}
    states = [state for state in GroupState if state.value.lower() in wanted]

    def answer(result: ListGroupsResult) -> ListGroupsResponse:
        groups = [
            ListGroupsListedGroup(each.group_id, each.protocol_type, each.state.value, each.group_type.value)
            for each in result.groups
        ]
        return ListGroupsResponse(error_code=result.code, groups=groups)

    wanted_types = {name.lower() for name in message.types_filter}
    types = [each for each in GroupType if each.value in wanted_types]
    if (wanted and not states) or (wanted_types and not types):
        return ListGroupsResponse()
    return transform(api.groups.list_groups(states, types), answer)


def handle_delete_groups(api: ApiContext, request: RequestContext, message: DeleteGroupsRequest) -> Outcome:
    """Delete empty groups."""

    def answer(codes: Sequence[ErrorCode]) -> DeleteGroupsResponse:
        pairs = zip(message.groups_names, codes, strict=True)
        return DeleteGroupsResponse(results=[DeleteGroupsDeletableGroupResult(name, code) for name, code in pairs])

    delete: Callable[[str], AppendFuture[Any]] = api.groups.delete_group
    return transform(gather([delete(name) for name in message.groups_names]), answer)
