"""The command line: one file for each command. Only `__main__` and the `pyreplog` script import it.

| modules | what they hold |
|---|---|
| `app` | the parser; commands are modules that are imported when they are used |
| `cat`, `tail`, `stat`, `cursor`, `fsck`, `dump`, `bench` | commands on a log |
| `backup`, `restore`, `offload`, `ingest` | more commands on a log |
| `bookie`, `ledger`, `cluster`, `autorecovery` | commands on ledgers |
| `clusterhealth`, `clusteraudit`, `clusterplan` | actions of `cluster` that only look |
| `clusterbookies`, `clusterrebalance`, `clusterscrub`, `clusterrecovery` | actions of `cluster` that change something |
| `broker`, `kafka` | a broker of partitions; a Kafka of one process |
| `partitions` | commands on topics of partitions |
| `ha`, `hanode`, `harocketmq` | commands on replica groups: common parts, nodes, RocketMQ's wire |
| `haclient` | appending to a replica group, and reading it |
| `serve`, `topic`, `subscription`, `top`, `geo` | commands on topics; replication to other clusters |
| `report`, `export` | reports and Parquet files |
| `shared` | parts that several commands use |
| `input`, `explaining`, `topics`, `live` | parts of `ingest`, `dump`, `topic`, `top` |
"""

EXIT_INTERRUPTED = 130
