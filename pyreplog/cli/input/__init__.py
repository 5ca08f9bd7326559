"""Rows of files, once each: of `ingest` and `topic publish`.

| modules | what they are |
|---|---|
| `source`, `bookmark` | files and pipes; how far they are read |
| `formats`, `rows`, `rowreader` | lines, CSV, JSON; one row; reading them |
| `eventtime` | a row's time |
"""
