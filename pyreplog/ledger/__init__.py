"""Ledgers: striped over bookies, one writer, many readers.

| module | holds |
|---|---|
| cluster, handle, reader | what user code has: Cluster, Ledger, LedgerReader |
| surroundings, embedded, remote | what the drivers of a cluster share: in one directory; over TCP |
| driver, workers | runs a state machine; threads for what blocks |
| ledgermetadata, stored | what the metadata store keeps of a ledger; getting it there |
| status, metrics | how a cluster is; for Prometheus |
| effects | what state machines ask for |
| push | batches on their way to an ensemble |
| justwritten | the last of them, for those who read it at once |
| writer | the writer: adds, ensemble changes, close |
| refusals | answers of bookies that end the writer |
| recovery | fencing and closing a ledger whose writer is gone |
| fences, stretch | what bookies say when they are fenced; what they say of a few entries |
| staging, merging | single entries gathered into batches; adds to one bookie gathered into requests |
| reading | reading entries from replicas |
| readahead, someread, lac | stretches in a row; a few entries that nobody waits for; what is confirmed so far |
| copies, entrymend, mending, repairs | which copies are there; writing those that are not, and noting them |
| openledgers, closing | those that are open for appending; closing several at once |
| placement | which bookies |
"""
