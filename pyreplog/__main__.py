"""`python -m pyreplog`: the command line."""

import sys

from pyreplog.cli.app import main

sys.exit(main())
