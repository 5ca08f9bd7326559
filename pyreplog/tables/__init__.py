"""Logs, ledgers and topics as tables: what is read, cut into tasks, read as Arrow batches. Without Spark.

| modules | what they are |
|---|---|
| `options`, `offsets`, `schema` | what a read is asked for, and the columns there are |
| `paths`, `logs` | what paths point to; what a log holds at one moment |
| `ranges`, `logslices`, `planning`, `slices` | which stretches of logs are read, and by which task |
| `reading` | what a task does |
| `objects`, `objectscan` | the same of logs that were offloaded |
| `locked_segment`, `scan`, `arrays`, `buffers`, `damage` | stretches, verified, as Arrow columns; what is no record |
| `cluster` | the same of ledgers and topics, whose entries lie in copies |
"""
