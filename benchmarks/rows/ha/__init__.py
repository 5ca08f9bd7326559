"""Replica groups of nodes in processes of their own, beside the bare limit of the same work and beside peers."""
