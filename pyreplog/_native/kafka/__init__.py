"""The bytes of Kafka's protocol: requests, responses, record batches.

| file | holds |
|---|---|
| wire | numbers on Kafka's wire: big endian, and of variable length |
| request_parser | cuts the stream of a connection into requests |
| record_batch | record batches: checked, read as columns, built |
| logged_batches | record batches in a log: which entries are some, and their records as buffers for Arrow |
| transcode | messages of topics as record batches |
| message_codec | decodes requests and encodes responses, by schemas |
"""
