"""Compiled kernels: bytes and numbers only; no policy, no protocol. FORMAT.md says what every byte means.

| file | holds |
|---|---|
| layout.h | structures and constants, compared with FORMAT.md by a test |
| crc32c.*, checksum | CRC-32C, the fastest kernel of this CPU, and its face towards Python |
| record, attributes, batch | one record, what hangs on it, and many of them as columns |
| segment | one mapped segment file |
| sparse | entry number and event time to offset |
| index, sealed | (ledger id, entry id) to offset: in memory, and in the file of a sealed segment |
| parts, appender | the arguments of an append, and the append path |
| reader | entry number to record |
| tail | the page a writer shares with readers, and sleeping on it |
| gate | where threads wait for a group commit |
| pump | bytes into descriptors, the GIL released |
| frame | offset + size frames, and the parser that takes any cut of a stream |
| status | status codes turned into exceptions |
"""
