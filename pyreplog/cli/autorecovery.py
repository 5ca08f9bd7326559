"""`pyreplog autorecovery run`: an auditor and a worker of a cluster, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyreplog.autorecovery.auto_recovery import AutoRecovery
from pyreplog.autorecovery.metrics import auto_recovery_metrics
from pyreplog.cli.shared import metadata_wait, serving, targets, tls
from pyreplog.cli.shared.output import print_json, say
from pyreplog.clock import SystemClock
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.net.sockets import address_text

NAME = "autorecovery"
IS_SERVER = True
HELP = "have lost copies made again, until SIGTERM or Ctrl-C"
RUN = "run an auditor and a worker of a cluster; any number of processes may, and one of them is the auditor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    run_parser = actions.add_parser("run", help=RUN, description=RUN)
    targets.add_target(run_parser, "metadata store of a cluster")
    run_parser.add_argument("--secret-file", metavar="FILE", type=Path, help="holds the secret that the bookies share")
    tls.add_client_arguments(run_parser)
    run_parser.add_argument("--audit-only", action="store_true", help="decide what is to be copied, and copy nothing")
    run_parser.add_argument("--metrics", metavar="[HOST:]PORT", help=serving.METRICS_HELP)
    metadata_wait.add_argument(run_parser)


def run(arguments: argparse.Namespace) -> int:
    stop = serving.stopped_by_signals()
    secret, context = serving.secret(arguments.secret_file), tls.client_context(arguments)
    with (
        metadata_wait.started(
            arguments, stop, lambda: LedgerCluster.connect(arguments.target, secret=secret, tls=context)
        ) as cluster,
        AutoRecovery(cluster, SystemClock(), copies=not arguments.audit_only) as recovery,
        serving.metrics_server(arguments, lambda: [*cluster.metrics(), *auto_recovery_metrics(recovery)]) as metrics,
    ):
        recovery.start()
        at = None if metrics is None else address_text(metrics.address)
        if arguments.json:
            print_json({"auto_recovery": recovery.owner, **({} if at is None else {"metrics": at})})
        else:
            say(f"auto-recovery {recovery.owner}", "" if at is None else f", metrics at {at}", sep="")
        sys.stdout.flush()
        stop.wait()
    return 0
