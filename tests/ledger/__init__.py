"""The ledger's state machines, one step at a time: a test says which message arrives when."""
