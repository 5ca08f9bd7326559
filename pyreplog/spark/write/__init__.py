"""Writing into topics: `df.write.format("pyreplog")`. Each row is stored once.

| modules | what they hold |
|---|---|
| `writer` | the writers that Spark calls |
| `options`, `columns` | the options of a write, and the columns that it takes |
| `rows`, `routing`, `publisher` | rows as columns for producers; their partitions; publishing rows |
"""
