"""Reports on records.

| modules | what they hold |
|---|---|
| `streams` | the log, topic or ledger that records belong to |
| `rates`, `sizes` | records appended per minute; sizes of records |
| `origins` | messages of each cluster where they were published, per minute |
| `keys`, `partitions` | the most frequent keys; records of each partition |
| `duplicates`, `gaps`, `order` | records that exist twice, are missing, or have an older time than the one before |
| `runs`, `slots` | sets of numbers, and of copies, in few rows |
"""
