"""Entries of many ledgers in one log, and the way from (ledger, entry) to a record.

| file | holds |
|---|---|
| extents | entry ids of one ledger to numbers of its records |
| ledger_rows | the records of one segment, ledger by ledger |
| index_file | the file of an index: header, checksums, directory |
| index, sealed | (ledger id, entry id) to offset: in memory, and in the file of a sealed segment |
| entries | entries of ledgers as bytes: encoded, parsed |
| intake | encoded entries into the log, and verified copies out of it |
| digest | a digest of encoded entries, with which bookies compare what they hold |
| lending | entries as they lie in the log, not copied and not verified |
| verification | bytes of a sealed segment and of its index, read from the disk |
"""
