"""What the machine can do without pyreplog: importing this package builds `adds`, `bare`, `calls`, `turnstile`
and `quorum`, if need be."""

from benchmarks.limits.build import built

__path__.append(str(built()))
