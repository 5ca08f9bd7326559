"""The command line. Nothing imports it but `__main__` and the `pyreplog` script."""
