"""What commands share.

| modules | what they are |
|---|---|
| `output`, `tables`, `progress`, `reportprogress` | what they print |
| `settings`, `tls`, `serving`, `parsers` | what they are told, until they are told to stop |
| `clusteroptions`, `sourceoptions` | which cluster they mean; what is read for reports |
| `targets`, `starts` | where topics are; places in them |
"""
