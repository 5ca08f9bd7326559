"""The command line. Nothing imports it but `__main__` and the `pyreplog` script.

| modules | what they are |
|---|---|
| `app` | the parser; commands are modules, imported when they are used |
| `cat`, `tail`, `stat`, `fsck`, `dump`, `bench`, `backup`, `restore`, `offload` | commands on a log |
| `explain`, `layout`, `rawsegment` | of `dump`: bytes, field by field |
| `ingest`, `bookmark`, `eventtime`, `formats`, `rowreader`, `rows`, `source` | rows of files into a log, once each |
| `bookie`, `ledger`, `cluster`, `clusteroptions` | commands on ledgers; which cluster they mean |
| `ha`, `hanode`, `harocketmq` | commands on replica groups |
| `serve`, `topic`, `subscription`, `targets`, `starts` | commands on topics; where these are; places in them |
| `topicpublish`, `topicconsume`, `messages`, `topicstats` | of `topic`: what publishes, prints and tells |
| `top`, `topview`, `topscreen`, `topwatch` | `top`: rows, screen, and what looks |
| `report`, `export`, `sourceoptions`, `reportprogress` | reports and Parquet files |
| `output`, `tables`, `progress` | what commands print |
| `settings`, `tls`, `serving`, `intermixed` | what commands are told, until they are told to stop |
"""

EXIT_INTERRUPTED = 130
