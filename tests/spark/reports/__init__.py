"""Reports: both engines beside each other, and beside plain Python."""
