"""Reports on subscriptions.

| modules | what they hold |
|---|---|
| `subscribing` | columns, rows and options that these reports share |
| `backlog_report`, `ages`, `drain` | how far subscriptions are behind; for how long; whether they catch up |
| `geo_report` | what other clusters lack of the topics that are replicated to them |
| `retention_report` | what could be removed, and subscriptions that nobody seems to read |
"""
