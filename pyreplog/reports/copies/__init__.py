"""Reports on copies: of ledgers on bookies, of logs and topics in other places.

| modules | what they are |
|---|---|
| `copies` | what copies of ledgers there are, and should be |
| `holes`, `underreplicated` | what is missing of them |
| `stripes`, `intervals` | entries that there are, ranges: in few rows |
| `audit`, `torntails` | records whose CRC is wrong; what crashes left behind the ends of logs |
| `divergence` | copies that differ |
| `replicationlag`, `samenames` | how far a copy is behind; what entries are called on both sides |
"""
