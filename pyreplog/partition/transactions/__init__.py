"""The transaction coordinator (KIP-98, KIP-360, KIP-890).

| module | what it holds |
|---|---|
| `transaction_metadata` | a transactional id: its producer, its state, the partitions of its transaction |
| `transaction_machine` | what a transactional id does: events in, effects out |
| `transaction_log` | keys and values of the records of `__transaction_state` |
| `transaction_coordinator` | the transactional ids of the partitions of that topic that a broker leads |
| `transaction_transport` | how markers reach the leaders of partitions, and questions the coordinators |
| `metadata_view` | what a coordinator asks of the cluster |
| `append_guard` | a produce is appended only to partitions that its transaction has |
| `remote_verifier` | asks the coordinator of a transactional id, whichever broker it is |
"""
