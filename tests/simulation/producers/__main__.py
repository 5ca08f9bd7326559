"""`python -m tests.simulation.producers --seeds 10000`"""

import sys

from ..runner import main
from .schedule import Schedule

sys.exit(main(Schedule, "tests.simulation.producers"))
