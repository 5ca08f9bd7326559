"""Tests of ledgers: state machines one step at a time, where the test says which message arrives when, and whole
clusters."""
