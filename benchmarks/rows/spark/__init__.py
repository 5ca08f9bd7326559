"""Rows of Spark and of reports without it.

| module | what it is |
|---|---|
| `rows` | logs of rows, and the same rows as Parquet and as Arrow files |
| `warm` | a Spark in a process of its own, that is asked for one piece of work after another |
| `works` | what is asked of it |
| `minutes` | reports without Spark beside it |
| `reading` | the source beside Spark's own, and beside reading without a source |
| `planning`, `tiny_ledgers` | what planning looks at; a cluster of many ledgers |
| `memory` | what a task holds |
| `striped` | a ledger whose copies are missing or damaged |
| `writing` | rows into a topic |
"""
