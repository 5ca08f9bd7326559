"""Reports on copies: of ledgers on bookies, and of logs and topics in other places.

| modules | what they hold |
|---|---|
| `copies` | comparison of the existing copies of ledgers with those that should exist |
| `holes`, `under_replicated` | missing copies by bookie, and by entry |
| `stripes`, `intervals` | sets of entries, and of numbers, in few rows |
| `audit`, `torn_tails` | records with a wrong CRC; unfinished records after the ends of logs |
| `divergence` | copies that differ |
| `recovery` | auto-recovery: health, remaining copies and their curve over time, disks |
| `replication_lag`, `same_names` | the lag of a copy; numbers that identify entries on both sides |
"""
