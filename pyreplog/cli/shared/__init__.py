"""Parts that several commands use.

| modules | what they hold |
|---|---|
| `partition_records` | the records of a partition's log |
| `output`, `tables`, `progress`, `report_progress` | output |
| `settings`, `tls`, `serving`, `parsers` | arguments; running until a signal |
| `metadata_option`, `metadata_wait` | the metadata store of a node; starting while it does not answer |
| `kafka_listener` | arguments of a Kafka listener |
| `cluster_options`, `source_options` | arguments that select a cluster, or the source of reports |
| `targets`, `starts` | arguments that select topics, and positions in them |
"""
