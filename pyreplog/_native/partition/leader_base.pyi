from typing import Any

from typing_extensions import disjoint_base

@disjoint_base
class LeadingReplicaBase:
    isr: Any
    config: Any
    start: Any
    end: Any
    synced: Any
    log_start: Any
    is_deposed: bool
    _followers: Any
    _high_watermark: Any

@disjoint_base
class ReplicaRoleBase:
    marks: Any
    log_end: Any
    changes: Any
    _leader_keys: Any

@disjoint_base
class LogTransactionsBase:
    _open: Any
    _unreplicated: Any

@disjoint_base
class ProducerStateManagerBase:
    transactions: Any
    _replayed: Any
