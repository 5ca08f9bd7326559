"""What the nodes of a replica group say and decide: messages, and state machines without I/O, clock or randomness."""
