"""`python -m tests.crash --seeds 1000`"""

import sys

from .runner import main

sys.exit(main())
