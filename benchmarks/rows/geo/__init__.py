"""Rows of geo-replication: topics and subscriptions in two clusters."""
