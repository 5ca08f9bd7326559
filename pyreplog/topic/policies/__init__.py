"""Policies of a topic. Pure, but for the upkeep that carries them out.

| modules | what they are |
|---|---|
| `backlog` | quotas: what is to be done when the slowest subscription falls too far behind |
| `expiry` | messages too old for subscriptions, subscriptions that nobody uses |
| `retention` | which closed ledgers may go |
| `trend` | how fast a backlog is worked off, when it will be done, whether it stands still |
| `maintenance` | does now and then what the others decide |
"""
