"""`python -m pyreplog`, and the `pyreplog` script: the command line."""

import sys

from pyreplog.cli import EXIT_INTERRUPTED


def main() -> int:
    """`pyreplog.cli.app.main`; Ctrl-C while that is loaded is as quiet as later."""
    try:
        from pyreplog.cli import app

        return app.main()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
