"""Logs, ledgers and topics as tables: plans a read, cuts it into tasks, and reads each task as Arrow batches.

Nothing here imports Spark.

| modules | what they hold |
|---|---|
| `options`, `offsets`, `schema` | the options of a read, and its columns |
| `paths`, `logs` | the logs that paths lead to; the segments of a log at one moment |
| `partitions` | the logs of partitions among them, up to what readers may see |
| `ranges`, `log_slices`, `planning`, `slices` | the parts of logs that are read, and the task that reads each |
| `reading` | the work of one task |
| `objects`, `object_scan` | the same for offloaded logs |
| `locked_segment`, `scan`, `damage` | verified records; damaged bytes |
| `arrays`, `batch_rows`, `buffers` | records, and those of record batches, as Arrow columns |
| `cluster` | the same for ledgers and topics, whose entries have several copies |
"""
