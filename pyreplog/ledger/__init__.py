"""Ledgers: striped over bookies, one writer, many readers.

| module | holds |
|---|---|
| ledgermetadata | what the metadata store keeps of a ledger |
| effects | what state machines ask for |
| push | batches on their way to an ensemble |
| writer | the writer: adds, ensemble changes, close |
| recovery | fencing and closing a ledger whose writer is gone |
| reading | reading entries from replicas |
| placement | which bookies |
"""
