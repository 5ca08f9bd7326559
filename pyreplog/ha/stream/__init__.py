"""The bytes of a log from one node to others: what is sent when, and how it lands."""
