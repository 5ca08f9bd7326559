"""Reports on subscriptions.

| modules | what they hold |
|---|---|
| `subscribing` | columns, rows and options that these reports share |
| `backlog_report`, `ages`, `drain` | backlogs of subscriptions; their ages; whether they shrink |
| `geo_report` | messages that other clusters lack of replicated topics; what a fail-over would lose or repeat |
| `retention_report` | removable data, and subscriptions that seem to be unused |
"""
