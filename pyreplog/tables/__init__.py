"""Logs, ledgers and topics as tables: plans a read, cuts it into tasks, and reads each task as Arrow batches.

Nothing here imports Spark.

| modules | what they hold |
|---|---|
| `options`, `offsets`, `schema` | the options of a read, and its columns |
| `paths`, `logs` | the logs that paths lead to; the segments of a log at one moment |
| `ranges`, `logslices`, `planning`, `slices` | the parts of logs that are read, and the task that reads each |
| `reading` | the work of one task |
| `objects`, `objectscan` | the same for offloaded logs |
| `locked_segment`, `scan`, `arrays`, `buffers`, `damage` | verified records as Arrow columns; damaged bytes |
| `cluster` | the same for ledgers and topics, whose entries have several copies |
"""
