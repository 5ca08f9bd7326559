"""Programs of threads whose every interleaving can be had again: see `scheduler`, `primitives`, `seam` and `search`.

A *harness* (harnesses/) is a small program that uses a few classes of the product from several tasks, and then asserts two
things: an invariant (nothing is lost, nothing comes twice, the order holds) and progress (`world.timeouts` is empty: nobody
waited for what had happened, not even until a bounded sleep of the product was over). The scheduler finds by itself that all
wait for ever. Every line of the sources that a harness names is a point at which another task may go on, beside every
operation of a lock, a condition, an event, a queue, a thread and a clock.

To add one: write a function of a `World`, put it into the table of its file with the modules whose lines matter, keep it at
two to four tasks of a few steps each. Bugs of this kind need few threads and few preemptions.

`python -m tests.interleaving [NAME …] --seeds N --first M` runs more seeds; `--repeat CHOICES` one run, with its switches.

Not covered: event loops of asyncio (their side of an AppendFuture is tested in tests/unit/test_future*.py), real sockets (harnesses
stand in for epoll), other processes, and what native code does without the GIL; within native code nothing comes between
two calls of Python code but where it sleeps.
"""
