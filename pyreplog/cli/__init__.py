"""The command line: one file for each command. Only `__main__` and the `pyreplog` script import it.

| modules | what they hold |
|---|---|
| `app` | the parser; commands are modules that are imported when they are used |
| `cat`, `tail`, `stat`, `cursor`, `fsck`, `dump`, `bench` | commands on a log |
| `backup`, `restore`, `offload`, `ingest` | more commands on a log |
| `bookie`, `ledger`, `cluster`, `autorecovery` | commands on ledgers |
| `cluster_health`, `cluster_audit`, `cluster_plan` | actions of `cluster` that only look |
| `cluster_bookies`, `cluster_rebalance`, `cluster_scrub`, `cluster_recovery` | actions of `cluster` that change it |
| `broker`, `kafka` | a broker of partitions; a Kafka of one process |
| `partitions` | commands on topics of partitions |
| `ha`, `ha_node`, `ha_rocketmq` | commands on replica groups: common parts, nodes, RocketMQ's wire |
| `ha_client` | appending to a replica group, and reading it |
| `serve`, `topic`, `subscription`, `top`, `geo` | commands on topics; replication to other clusters |
| `report`, `export` | reports and Parquet files |
| `shared` | parts that several commands use |
| `input`, `explaining`, `topics`, `live` | parts of `ingest`, `dump`, `topic`, `top` |
"""

EXIT_INTERRUPTED = 130
