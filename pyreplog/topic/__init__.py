"""Topics: chains of ledgers that producers publish to, cursors that say what each subscription has acknowledged."""
