"""Ledgers: sequences of entries, striped over bookies, with one writer and many readers.

| module | what it holds |
|---|---|
| `protocol/` | BookKeeper's protocol as state machines: writing, reading, fencing, recovery, repair |
| `cluster`, `ledger_handle`, `reader` | the handles of user code: `LedgerCluster`, `Ledger`, `LedgerReader` |
| `runtime`, `embedded`, `remote_runtime` | services that drivers share; clusters in one directory, and over TCP |
| `registrations`, `quarantine` | which bookies run, and which are leaving; which failed lately |
| `driver`, `thread_pool` | runs a state machine; threads for jobs that block |
| `ledger_metadata`, `ledger_store` | the metadata of one ledger; ledgers in the metadata store |
| `status`, `metrics` | a report on a cluster; metrics for Prometheus |
| `tail_cache` | the batch that was appended last, for readers that want it at once |
| `readahead`, `range_read` | reads consecutive ranges ahead; reads one range without waiting |
| `repair`, `repair_notes` | writes missing copies; notes of copies that are missing or damaged |
| `writer_keys` | keys that tell which ledgers a client has open for appending |
| `replacement_pacing` | has open ledgers replace members that leave, a few at a time |
| `open_ledger_set`, `closing` | the ledgers that are open for appending; closes several at once |
| `migration` | moves the ledgers of a store of an older layout |
| `placement` | chooses the bookies of an ensemble |
"""
