"""`python -m pyreplog`, and the `pyreplog` script: the command line."""

import sys

from pyreplog.cli import EXIT_INTERRUPTED


def main() -> int:
    """Load and run `pyreplog.cli.app.main`. Ctrl-C during the import exits without a traceback, as in the commands."""
    try:
        from pyreplog.cli import app

        return app.main()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
