"""What a bookie does for every entry that is added.

| file | holds |
|---|---|
| peek | what encoded entries and control records say of themselves |
| ledgerstate | what a bookie knows of one ledger, and what of all is not durable yet |
| plainadd | an ADD that asks for nothing special, from its frame to that of its OK: a bookie's short way |
| answering | the answers of a bookie when it commits |
"""
