"""The command line: a file for each command. Nothing imports it but `__main__` and the `pyreplog` script.

| modules | what they are |
|---|---|
| `app` | the parser; commands are modules, imported when they are used |
| `cat`, `tail`, `stat`, `cursor`, `fsck`, `dump`, `bench` | commands on a log |
| `backup`, `restore`, `offload`, `ingest` | as above |
| `bookie`, `ledger`, `cluster`, `clusterplan`, `autorecovery` | commands on ledgers |
| `ha`, `hanode`, `harocketmq` | commands on replica groups: what they share, nodes, RocketMQ's wire |
| `haclient` | appending to a replica group, and reading it |
| `serve`, `topic`, `subscription`, `top` | commands on topics |
| `report`, `export` | reports and Parquet files |
| `shared` | what several of them need |
| `input`, `explaining`, `topics`, `live` | of `ingest`, `dump`, `topic`, `top` |
"""

EXIT_INTERRUPTED = 130
