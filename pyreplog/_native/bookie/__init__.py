"""What a bookie does for every entry that is added.

| file | holds |
|---|---|
| inspect_records | what encoded entries and control records say of themselves |
| ledger_state_base | what a bookie knows of one ledger, and what of all is not durable yet |
| fast_add | an ADD that asks for nothing special, from its frame to that of its OK: a bookie's short way |
| bookie_service_base | the plain ADDs of a batch of requests, and the answers of a bookie when it commits |
"""
