"""Compiled kernels: bytes and numbers only. See FORMAT.md for every byte."""
