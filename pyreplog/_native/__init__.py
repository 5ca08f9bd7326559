"""Compiled kernels: bytes and numbers only; no policy, no protocol. FORMAT.md says what every byte means.

| file | holds |
|---|---|
| layout.h | structures and constants, compared with FORMAT.md by a test |
| crc32c.*, checksum | CRC-32C, the fastest kernel of this CPU, and its face towards Python |
| record, attributes, batch | one record, what hangs on it, and many of them as columns |
| segment | one mapped segment file |
| mapfile | index files mapped for reading |
| sparse | entry number and event time to offset |
| extents | entry ids of one ledger to numbers of its records |
| index, sealed | (ledger id, entry id) to offset: in memory, and in the file of a sealed segment |
| entries | entries of ledgers as bytes: encoded, parsed |
| intake | encoded entries into a log of many ledgers, and verified copies out of it |
| landing | records of another log's stream, verified where they landed; the commit point |
| lending | entries out of such a log as they lie there, not copied and not verified |
| blocks | large buffers whose memory is used again |
| parts, appender | the arguments of an append, and the append path |
| reader | entry number to record |
| place | where a follower stands, and the way from its waking up to the record |
| tail | the page a writer shares with readers, and sleeping on it |
| gate | where threads wait for a group commit |
| parking | where threads wait for the commit point of a replica group, one in the lead |
| pump | bytes into and out of descriptors, the GIL released around what takes long |
| interrupts | Ctrl-C put off while something must not stop half way |
| disk | file operations in one go, the GIL released once |
| pwrite.h | the whole write that both of them do |
| frame | offset + size frames, and the parser that takes any cut of a stream |
| quorum | write sets, ack tracking, coverage, commit point |
| answers | plain OKs of bookies, from their frames into that |
| stripe | what of a batch of entries goes to one bookie |
| peek | what encoded entries and control records say of themselves |
| plainadd | an ADD that asks for nothing special, in its frame, and the frame of its OK |
| stretches | columns most of whose rows are alike, and sums of stretches of them |
| status | status codes turned into exceptions |
"""
