"""Auto-recovery: copies that were lost come back without an operator.

An auditor decides which bookies are gone and places an order for each; workers copy what the orders leave to do. The
work left is never stored: it is the metadata of the ledgers that still name the bookie, so that a bookie which returns
ends the work on it. Every change is a compare-and-set of one ledger's metadata; leases only keep two processes from
doing the same work twice.

| module | what it holds |
|---|---|
| `auto_recovery` | `AutoRecovery`: the auditor and the worker of one process |
| `auditor` | decides which bookies are gone, and places orders |
| `worker`, `targets` | copies what orders leave to do; chooses bookies for copies |
| `copy_rate_limiter` | how many bytes a worker copies in a second |
| `replication_driver` | runs the state machine that copies one ledger |
| `failed_attempt` | work that failed, and when it is tried again |
| `bookie_index`, `ledger_scan` | which ledgers name which bookie; reads it from the metadata |
| `bookie_operations`, `health` | an operator's decisions about a bookie; the state of a cluster in one word |
| `overview` | what operators see of it all at one moment, with rates and the time that is left |
| `ledger_survey`, `cluster_audit`, `copy_audit` | numbers of all ledgers; what is missing; copies compared |
| `scrubs` | asks bookies how far their scrubs are, and to scrub now |
| `rebalancer`, `rebalance_moves` | plans moves from full bookies to empty ones; the key with which workers get them |
| `orders`, `hold`, `timed_reason` | keys of operators and auditors, and their values |
| `config` | settings of the cluster |
| `lost_entries` | entries of which nobody has a copy any more |
| `leased_keys` | keys by which processes share the work |
| `copy_repairs` | has copies written again that were noted as bad; finds lost entries on disks that return |
| `replicas_check` | compares the copies of every closed ledger with each other |
| `open_ledger_recovery` | recovers ledgers whose last fragment names a bookie that leaves, if no writer lives |
| `status`, `worker_status`, `metrics` | what an auditor and a worker tell operators |
| `durability_model`, `loss_chain` | a model of durability, rebuild time and cost, on paper |
| `durability_simulation`, `placement_model`, `poisson_interval` | the same failures drawn at random |
| `key_waiter` | waits for changes of keys |
| `protocol` | decisions, without I/O, clock or randomness |
"""
