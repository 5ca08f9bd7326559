"""Histories of clients that wrote to partitions and read them while brokers failed, and the rules that they must keep.

The rules are those of Elle (Kingsbury, Alvaro: "Elle: Inferring Isolation Anomalies from Experimental Observations") for
lists to which transactions append. Offsets give the order of a list here, so it need not be inferred. Values are
unique.

| module | what it is |
|---|---|
| `history` | what clients did and were told |
| `anomalies` | the rules |
| `cycles`, `graph` | the rules of which it takes several transactions to break one, and cycles that Kafka permits |
| `planted` | cycles that are planted into a history that was recorded: it must be able to show them |
| `test_anomalies` | the rules find what they must, in histories with planted anomalies |

`tests.chaos.partitions` records histories of real brokers, and judges them.
"""
