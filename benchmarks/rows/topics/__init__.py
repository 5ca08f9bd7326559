"""Topics and their subscriptions, beside what the same work takes at least and beside peers."""
