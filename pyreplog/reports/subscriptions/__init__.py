"""Reports on subscriptions.

| modules | what they are |
|---|---|
| `subscribing` | what they have in common |
| `backlog`, `ages`, `drain` | how far they are behind; since when; whether they catch up |
| `retention` | what could be removed, and subscriptions that nobody reads |
"""
