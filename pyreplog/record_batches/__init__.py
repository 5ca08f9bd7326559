"""Kafka's record batches, version 2: checked, read and built, with their codecs.

| module | what it holds |
|---|---|
| `batches` | record batches of clients are checked, read as columns and built |
| `compression` | the codecs; decompression stops at a limit |
"""
