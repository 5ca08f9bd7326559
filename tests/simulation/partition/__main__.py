"""`python -m tests.simulation.partition --seeds 100000`"""

import sys

from ..runner import main
from .schedule import Schedule

sys.exit(main(Schedule, "tests.simulation.partition"))
