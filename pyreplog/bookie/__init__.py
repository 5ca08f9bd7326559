"""A storage node: entries of many ledgers in one log.

| module | holds |
|---|---|
| protocol | requests and replies, and their bytes |
| bookie | Bookie: the state machine; its rules |
| ledgerstate, ledgerstates | what it knows of one ledger; those asked for lately |
| admission | who may do what |
| failures | what a failure of the log means to who asked |
| reading, duplicates | three-valued reads; entries that come a second time |
| controls, limbo | control records: keys, fences, explicit LACs, limbo; how ledgers come into limbo, and out of it |
| commit_group | who waits for the next sync |
| long_polls | who waits for a LAC |
| disk_space | read-only, and back |
| entrylog | EntryLog: what it needs of a log; DiskLog: a LedgerLog |
| ledgerlog, multi_ledger_log | LedgerLog: the entries of many ledgers in one log; the commit log under it |
| ledgermap, entry_locations | which segments hold entries of which ledgers; where entries lie |
| config | BookieConfig |
| local | LocalBookie: one in this process, for any thread |
| identity, opening | whose directory it is; opening one, and what a crash may have lost |
| unclean_shutdown_marker | whether memory held more than the disk when the machine went down |
| registration | its key in metadata while it runs |
| ledgerlist, collector | which ledgers there are; the space of the others comes back |
| key_verifier | keys that it does not know, and what the metadata say of them |
| service | over TCP |
| counts, metrics | what it has done; for Prometheus |
| node | all of it, as a process runs it |
"""
