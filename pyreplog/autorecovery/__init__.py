"""Auto-recovery: replicates lost copies again without an operator.

An auditor decides which bookies are gone and places an order for each; workers replicate the copies of bookies with
orders. The remaining work is not stored: it follows from the metadata of the ledgers that still name the bookie, so
that the return of a bookie ends the work on it. Every change is a compare-and-set of one ledger's metadata. Leases only
prevent two processes from doing the same work.

| module | what it holds |
|---|---|
| `auto_recovery` | `AutoRecovery`: the auditor and the worker of one process |
| `auditor` | decides which bookies are gone, and places orders |
| `worker`, `targets` | replicates the copies of bookies with orders; chooses the target bookies |
| `copy_rate_limiter` | limits the bytes that a worker copies per second |
| `replication_driver` | runs the state machine that copies one ledger |
| `failed_attempt` | failed work, with the time of the next attempt |
| `bookie_index`, `ledger_scan` | maps bookies to the ledgers that name them; reads the metadata |
| `bookie_operations`, `health` | an operator's commands for a bookie; the state of a cluster as one colour |
| `overview` | auto-recovery at one moment for operators, with rates and estimated times |
| `ledger_survey`, `cluster_audit`, `copy_audit` | copy counts of all ledgers; missing copies; comparison of copies |
| `scrubs` | requests scrub reports of bookies, and starts scrubs |
| `rebalancer`, `rebalance_moves` | plans moves from full bookies to empty ones; the key from which workers take them |
| `orders`, `hold`, `timed_reason` | keys of operators and auditors, and their values |
| `config` | settings of the cluster |
| `lost_entries` | the list of entries of which no bookie has a copy |
| `leased_keys` | keys with which processes share the work |
| `copy_repairs` | repairs copies that were noted as bad; finds lost entries on disks that return |
| `replicas_check` | compares the copies of every closed ledger with each other |
| `open_ledger_recovery` | recovers ledgers without a writer whose last fragment names a bookie that leaves |
| `status`, `worker_status`, `metrics` | published status of an auditor and of a worker; metrics |
| `durability_model`, `loss_chain` | a model of durability, rebuild time and cost |
| `durability_simulation`, `placement_model`, `poisson_interval` | a simulation of the same failures |
| `key_waiter` | waits for changes of keys |
| `protocol` | decisions, without I/O, clock or randomness |
"""
