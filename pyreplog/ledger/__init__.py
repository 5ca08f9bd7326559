"""Ledgers: striped over bookies, one writer, many readers.

| module | holds |
|---|---|
| protocol/ | BookKeeper's protocol as state machines: writing, reading, fencing, recovery, repairing |
| cluster, ledger_handle, reader | what user code has: Cluster, Ledger, LedgerReader |
| runtime, embedded, remote | what the drivers of a cluster share: in one directory; over TCP |
| registrations, quarantine | which bookies run, as a client follows it; which of them failed lately |
| driver, thread_pool | runs a state machine; threads for what blocks |
| ledgermetadata, ledger_store | what the metadata store keeps of a ledger; getting it there |
| status, metrics | how a cluster is; for Prometheus |
| tail_cache | the last batches, for those who read them at once |
| readahead, range_read | ranges in a row; a few entries that nobody waits for |
| repair, repair_notes | missing copies written; which of them are noted |
| openledgers, closing | those that are open for appending; closing several at once |
| placement | which bookies |
"""
