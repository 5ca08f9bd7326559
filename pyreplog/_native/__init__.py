"""Compiled: what is done for every entry. Kernels take bytes and numbers; of protocols only the steps that every append
takes are here, as bases of Python classes that have the rest. FORMAT.md says what every byte means.

| file | holds |
|---|---|
| layout.h | structures and constants, compared with FORMAT.md by a test |
| crc32c.*, checksum | CRC-32C, the fastest kernel of this CPU, and its face towards Python |
| record, attributes, batch | one record, what hangs on it, and many of them as columns |
| segmentheader | the first block of a segment file |
| segment | one mapped segment file |
| mapfile | index files mapped for reading |
| sparse | entry number and event time to offset |
| extents | entry ids of one ledger to numbers of its records |
| ledgerrows | the records of one segment, ledger by ledger |
| indexfile | the file of what follows: header, checksums, directory |
| index, sealed | (ledger id, entry id) to offset: in memory, and in the file of a sealed segment |
| entries | entries of ledgers as bytes: encoded, parsed |
| intake | encoded entries into a log of many ledgers, and verified copies out of it |
| landing | records of another log's stream, verified where they landed; the commit point |
| lending | entries out of such a log as they lie there, not copied and not verified |
| blocks | large buffers whose memory is used again |
| parts, appender, groupbuffer | the arguments of an append, the append path, and what waits there for a group commit |
| reader | entry number to record |
| place | where a follower stands, and the way from its waking up to the record |
| tail | the page a writer shares with readers, and sleeping on it |
| ack | the outcome of something submitted, for threads and for tasks of event loops |
| submitted | acks of what waits for a group commit |
| gate, leading | where threads wait for a group commit; one such commit |
| parking | where threads wait for the commit point of a replica group, one in the lead |
| looprounds | acks of what event loops' tasks submit to a replica group, by the rounds of their loops |
| pump | bytes into and out of descriptors, the GIL released around what takes long |
| polling | epoll, with and without sleeping |
| interrupts | Ctrl-C put off while something must not stop half way |
| rounds | one round of a reactor: until when it sleeps, whom it calls back |
| disk | file operations in one go, the GIL released once |
| pwrite.h | the whole write that both of them do |
| frame | offset + size frames, and the parser that takes any cut of a stream |
| mark | places in a log |
| reports | the reports of a replica group's replicas, as bytes |
| committing | what the master of a replica group does for every report |
| progress | the offsets that a RocketMQ slave reports |
| quorum | write sets, coverage, order statistic |
| acktracker | what the bookies of an ensemble have acked; the commit point |
| answers | plain OKs of bookies, from their frames into that |
| effects | what state machines ask for with every message |
| turns | steps that one thread at a time takes, and none waits for |
| driving | a state machine's events and effects |
| named | named tuples of what every message makes |
| pushing | batches of entries on their way to the bookies of an ensemble |
| staging | single entries that wait while others are on their way |
| appending | what a ledger does for every append |
| writing | what a ledger's writer does for every append |
| mutex | a lock that native code takes without a call of Python's |
| outbox | buffers on their way into a socket |
| nextframe | what was just appended, from the log to the socket of a replica |
| arrivals | requests that are answered at once: received, handed over, answered in one step |
| asking | requests that leave at once: numbered, noted and sent in one step |
| remotes | what a client of bookies elsewhere does for every append |
| stripe | what of a batch of entries goes to one bookie |
| peek | what encoded entries and control records say of themselves |
| ledgerstate | what a bookie knows of one ledger, and what of all is not durable yet |
| requesthead | where a request says what |
| plainadd | an ADD that asks for nothing special, from its frame to that of its OK: a bookie's short way |
| histogram | how large what happens is, for metrics |
| answering | the answers of such a bookie when it commits |
| rows | sorted rows of integers, millions of them |
| ranges, rangeset | ranges of offsets in such rows, and sets of them |
| varint | numbers in as few bytes as they need |
| ackstate, ackset | what a subscription has acknowledged, with exact counts: the machine, and its face towards Python |
| messagefields, messageencoder | messages into entries: what they carry besides keys and values, and all of it |
| messageentry, message, messagecolumns | entries into messages: where they lie, one, many gathered |
| messages, messageiterator | batches of them, and what gives them in turn |
| handout | batches into single messages for consumers |
| arrowcolumns, arrowmessages | records and messages as Arrow columns |
| murmur, spread | hashes of keys; columns of some rows, for what goes to several places |
| stretches | columns most of whose rows are alike, and sums of stretches of them |
| status | status codes turned into exceptions |
"""
