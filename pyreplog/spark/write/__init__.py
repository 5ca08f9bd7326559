"""Writing into topics: `df.write.format("pyreplog")`, each row stored once.

| modules | what they are |
|---|---|
| `writer` | what Spark calls |
| `options`, `columns` | what a write is asked for, and the columns it takes |
| `rows`, `routing`, `publisher` | rows as columns of producers; to partitions; published in order, awaited |
"""
