"""Rows of files, each once, for `ingest` and `topic publish`.

| modules | what they hold |
|---|---|
| `source`, `bookmark` | files and pipes; how far they are ingested |
| `formats`, `rows`, `rowreader` | lines, CSV, JSON; consecutive rows; reading them |
| `eventtime` | event times in text |
"""
