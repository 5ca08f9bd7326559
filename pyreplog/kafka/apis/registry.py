"""The table of API functions.

ApiVersions announces these APIs only, and a request of another API closes its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pyreplog.kafka.apis.acls import handle_create_acls, handle_delete_acls, handle_describe_acls
from pyreplog.kafka.apis.authentication import handle_sasl_authenticate, handle_sasl_handshake
from pyreplog.kafka.apis.client_quotas import handle_alter_client_quotas, handle_describe_client_quotas
from pyreplog.kafka.apis.configs import (
    handle_alter_configs,
    handle_describe_configs,
    handle_incremental_alter_configs,
)
from pyreplog.kafka.apis.consumer_groups import handle_consumer_group_describe, handle_consumer_group_heartbeat
from pyreplog.kafka.apis.context import ApiContext, LongCall, Outcome, RequestContext
from pyreplog.kafka.apis.describe_transactions import (
    handle_describe_producers,
    handle_describe_transactions,
    handle_list_transactions,
)
from pyreplog.kafka.apis.elections import handle_elect_leaders
from pyreplog.kafka.apis.fetch import handle_fetch
from pyreplog.kafka.apis.find_coordinator import handle_find_coordinator
from pyreplog.kafka.apis.groups import (
    handle_delete_groups,
    handle_describe_groups,
    handle_heartbeat,
    handle_join_group,
    handle_leave_group,
    handle_list_groups,
    handle_sync_group,
)
from pyreplog.kafka.apis.list_offsets import handle_list_offsets, handle_offset_for_leader_epoch
from pyreplog.kafka.apis.log_dirs import handle_describe_log_dirs
from pyreplog.kafka.apis.metadata import handle_describe_cluster, handle_metadata
from pyreplog.kafka.apis.offsets import handle_offset_commit, handle_offset_delete, handle_offset_fetch
from pyreplog.kafka.apis.produce import handle_produce
from pyreplog.kafka.apis.reassignments import (
    handle_alter_partition_reassignments,
    handle_list_partition_reassignments,
)
from pyreplog.kafka.apis.topics import (
    handle_create_partitions,
    handle_create_topics,
    handle_delete_records,
    handle_delete_topics,
)
from pyreplog.kafka.apis.transactions import (
    handle_add_offsets_to_txn,
    handle_add_partitions_to_txn,
    handle_end_txn,
    handle_init_producer_id,
    handle_txn_offset_commit,
)
from pyreplog.kafka.wire.schema import ApiKey

Api: TypeAlias = "Callable[[ApiContext, RequestContext, Any], Outcome | LongCall]"

APIS: Mapping[int, Api] = {
    ApiKey.PRODUCE: handle_produce,
    ApiKey.FETCH: handle_fetch,
    ApiKey.LIST_OFFSETS: handle_list_offsets,
    ApiKey.METADATA: handle_metadata,
    ApiKey.OFFSET_COMMIT: handle_offset_commit,
    ApiKey.OFFSET_FETCH: handle_offset_fetch,
    ApiKey.JOIN_GROUP: handle_join_group,
    ApiKey.HEARTBEAT: handle_heartbeat,
    ApiKey.LEAVE_GROUP: handle_leave_group,
    ApiKey.SYNC_GROUP: handle_sync_group,
    ApiKey.DESCRIBE_GROUPS: handle_describe_groups,
    ApiKey.LIST_GROUPS: handle_list_groups,
    ApiKey.DELETE_GROUPS: handle_delete_groups,
    ApiKey.OFFSET_DELETE: handle_offset_delete,
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
    ApiKey.CREATE_TOPICS: handle_create_topics,
    ApiKey.DELETE_TOPICS: handle_delete_topics,
    ApiKey.DELETE_RECORDS: handle_delete_records,
    ApiKey.INIT_PRODUCER_ID: handle_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: handle_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: handle_add_offsets_to_txn,
    ApiKey.END_TXN: handle_end_txn,
    ApiKey.TXN_OFFSET_COMMIT: handle_txn_offset_commit,
    ApiKey.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKey.ALTER_CONFIGS: handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKey.DESCRIBE_ACLS: handle_describe_acls,
    ApiKey.CREATE_ACLS: handle_create_acls,
    ApiKey.DELETE_ACLS: handle_delete_acls,
    ApiKey.CREATE_PARTITIONS: handle_create_partitions,
    ApiKey.ELECT_LEADERS: handle_elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: handle_list_partition_reassignments,
    ApiKey.SASL_HANDSHAKE: handle_sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: handle_sasl_authenticate,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: handle_alter_client_quotas,
    ApiKey.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: handle_describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: handle_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: handle_list_transactions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: handle_consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: handle_consumer_group_describe,
}
"""Functions by API key. The server itself answers ApiVersions, from these keys."""
