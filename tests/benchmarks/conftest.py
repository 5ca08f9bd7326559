"""Makes the checkout's `benchmarks` importable, behind everything that is installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
