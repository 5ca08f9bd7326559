"""`python -m tests.simulation.geo --seeds 10000`"""

import sys

from .campaign import run

sys.exit(run())
