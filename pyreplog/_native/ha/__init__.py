"""What a master and its replicas do for every append.

| file | holds |
|---|---|
| parking | threads that wait for the commit point of a replica group, while one of them drives the reactor |
| loop_batches | batches of entries that tasks of an event loop submit in one round of it |
| reports | the reports of a replica group's replicas, as bytes, and which one a replica owes |
| stream_receiver_base | what a replica does for an append: applies its frame, and reports it |
| master_base | what a master does for an append: sends it, takes the reports, wakes the caller |
| commit_point | what the master does for every report: moves the commit point, which Kafka calls the high watermark |
| client_batch | batches of a client of a replica group: encoded, verified and appended, parsed |
| slave_offsets | the offsets that a RocketMQ slave reports |
"""
