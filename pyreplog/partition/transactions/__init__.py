"""The transaction coordinator (KIP-98, KIP-360, KIP-890).

| module | what it holds |
|---|---|
| `transaction_metadata` | a transactional id: its producer, its state, the partitions of its transaction |
| `transaction_machine` | the state machine of a transactional id: events in, effects out |
| `transaction_log` | keys and values of the records of `__transaction_state` |
| `transaction_coordinator` | the transactional ids of the partitions of that topic that a broker leads |
| `transaction_transport` | sends markers to the leaders of partitions, and verifications to coordinators |
| `metadata_view` | the cluster metadata that a coordinator reads |
| `append_guard` | lets a produce append only to the partitions of its transaction |
| `remote_verifier` | sends verifications to the coordinator of a transactional id, on any broker |
"""
