"""Streams: `spark.readStream.format("pyreplog")`.

| modules | what they are |
|---|---|
| `reader`, `plan`, `limits` | what Spark calls; what the next batch is |
| `options`, `offsets` | what a stream is asked for; how far it has come, as its checkpoint says |
| `tracks`, `logs`, `topics` | the logs and topics that a stream follows, as they are found |
| `starts` | where it begins at a time, where that is damaged |
"""
