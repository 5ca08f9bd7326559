"""Ledgers: striped over bookies, one writer, many readers.

| module | holds |
|---|---|
| ledgermetadata | what the metadata store keeps of a ledger |
| effects | what state machines ask for |
| push | batches on their way to an ensemble |
| writer | the writer: adds, ensemble changes, close |
| refusals | answers of bookies that end the writer |
| recovery | fencing and closing a ledger whose writer is gone |
| fences, stretch | what bookies say when they are fenced; what they say of a few entries |
| reading | reading entries from replicas |
| copies, mend, mending, repairs | which copies are there; writing those that are not, and noting them |
| openledgers, closing | those that are open for appending; closing several at once |
| placement | which bookies |
"""
