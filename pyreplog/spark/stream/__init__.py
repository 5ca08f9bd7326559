"""Streams: `spark.readStream.format("pyreplog")`.

| modules | what they hold |
|---|---|
| `reader`, `stream_planner`, `limits` | the reader that Spark calls; the plan of the next batch |
| `options`, `offsets` | the options of a stream; its position, as the checkpoint stores it |
| `source_partitions`, `logs`, `topics` | the logs and partitions of topics that a stream follows |
| `starts` | the start at a time when the entries there are damaged |
"""
