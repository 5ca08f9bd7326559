"""Reports on copies: of ledgers on bookies, and of logs and topics in other places.

| modules | what they hold |
|---|---|
| `copies` | comparison of the copies of ledgers that exist with those that should exist |
| `holes`, `under_replicated` | missing copies by bookie, and by entry |
| `stripes`, `intervals` | sets of entries, and of numbers, in few rows |
| `audit`, `torn_tails` | records with a wrong CRC; unfinished records after the ends of logs |
| `divergence` | copies that differ |
| `recovery` | auto-recovery: health, what is left to copy, the curve of it, disks |
| `replication_lag`, `same_names` | how far a copy is behind; numbers that identify entries on both sides |
"""
