"""What `make test` tries a share of, another one in every run, because trying all of it takes long.

All is tried with PYREPLOG_THOROUGH=1, which `python -m tests.plants` sets: a planted bug is caught for certain, not by luck.
`make simulate` and `make crash` run as many seeds as they are told to.
"""

from __future__ import annotations

import os

IS_THOROUGH = bool(os.environ.get("PYREPLOG_THOROUGH"))


def one_in(share: int) -> int:
    """One in how many is to be tried: `share`, or each one."""
    return 1 if os.environ.get("PYREPLOG_THOROUGH") else share
