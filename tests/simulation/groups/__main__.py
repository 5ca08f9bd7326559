"""`python -m tests.simulation.groups --seeds 20000`"""

import sys

from ..runner import main
from .schedule import Schedule

sys.exit(main(Schedule, "tests.simulation.groups"))
