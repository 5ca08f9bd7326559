"""Ledgers: striped over bookies, one writer, many readers.

| module | holds |
|---|---|
| protocol/ | BookKeeper's protocol as state machines: writing, reading, fencing, recovery, mending |
| cluster, handle, reader | what user code has: Cluster, Ledger, LedgerReader |
| surroundings, embedded, remote | what the drivers of a cluster share: in one directory; over TCP |
| registrations, quarantine | which bookies run, as a client follows it; which of them failed lately |
| driver, workers | runs a state machine; threads for what blocks |
| ledgermetadata, stored | what the metadata store keeps of a ledger; getting it there |
| status, metrics | how a cluster is; for Prometheus |
| justwritten | the last batches, for those who read them at once |
| readahead, someread | stretches in a row; a few entries that nobody waits for |
| mending, repairs | missing copies written; which of them are noted |
| openledgers, closing | those that are open for appending; closing several at once |
| placement | which bookies |
"""
