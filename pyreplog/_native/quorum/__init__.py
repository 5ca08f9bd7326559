"""Write sets, what bookies have acked of them, and what of a batch goes to whom.

| file | holds |
|---|---|
| quorum | write sets, coverage, order statistic |
| ack_tracker | what the bookies of an ensemble have acked; the commit point |
| stripe | what of a batch of entries goes to one bookie |
"""
