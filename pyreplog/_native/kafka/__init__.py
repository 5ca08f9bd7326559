"""The bytes of Kafka's protocol: requests, responses, record batches.

| file | holds |
|---|---|
| wire | numbers on Kafka's wire: big endian, and of variable length |
| request_parser | cuts the stream of a connection into requests |
| record_batch | record batches: checked, read as columns, built |
| record_set | records of consecutive batches as columns, for consumers; the batches in the frames of a log |
| murmur2 | the hash of keys by which Kafka's clients choose partitions |
| logged_batches | record batches in a log: which entries are some, and their records as buffers for Arrow |
| log_cleaner | compaction: the latest offset of each key, batches without older records |
| transcode | messages of topics as record batches |
| fetch_gather | record batches of a partition's log, as a fetch answers them |
| message_codec | decodes requests and encodes responses, by schemas |
"""
