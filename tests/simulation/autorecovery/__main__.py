"""`python -m tests.simulation.autorecovery --seeds 100000`"""

import sys

from ..runner import main
from .schedule import Schedule

sys.exit(main(Schedule, "tests.simulation.autorecovery"))
