"""`python -m tests.simulation.regions --seeds 10000`"""

import sys

from ..runner import main
from .schedule import Schedule

sys.exit(main(Schedule, "tests.simulation.regions"))
