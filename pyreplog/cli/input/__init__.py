"""Rows of files, each once, for `ingest` and `topic publish`.

| modules | what they hold |
|---|---|
| `source`, `bookmark` | files and pipes; how far they are ingested |
| `formats`, `rows`, `row_reader` | lines, CSV, JSON; consecutive rows; reading them |
| `event_time` | event times in text |
"""
