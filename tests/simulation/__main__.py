"""`python -m tests.simulation --seeds 100000`"""

import sys

from .runner import main

sys.exit(main())
