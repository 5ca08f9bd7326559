"""`pyreplog cluster hold` and `autorecovery`: suspend auto-recovery, and change its settings."""

from __future__ import annotations

import argparse
from typing import Any

from pyreplog.autorecovery.config import AutoRecoveryConfig, change_config, load_config
from pyreplog.autorecovery.hold import begin_hold, end_hold
from pyreplog.autorecovery.timed_reason import TimedReason
from pyreplog.cli.shared import cluster_options, settings
from pyreplog.cli.shared.output import moment, print_fields, print_json, say
from pyreplog.clock import SystemClock

HOLD = "suspend auto-recovery, for an upgrade; --end: let it go on"
AUTORECOVERY = "show the settings of auto-recovery, and change them"


def add_actions(actions: Any) -> None:
    """Add the parsers of the actions."""
    hold = actions.add_parser("hold", help=HOLD, description=HOLD)
    hold.add_argument("--reason", default="an operator suspended it", help="for other operators")
    hold.add_argument("--end", action="store_true", help="let auto-recovery go on")
    hold.set_defaults(action=_hold)
    autorecovery = actions.add_parser("autorecovery", help=AUTORECOVERY, description=AUTORECOVERY)
    settings.add_arguments(autorecovery)
    autorecovery.set_defaults(action=_autorecovery)


def _hold(arguments: argparse.Namespace) -> int:
    with cluster_options.cluster(arguments) as cluster:
        if arguments.end:
            had_one = end_hold(cluster.metadata)
            if arguments.json:
                print_json({"hold": None, "had_one": had_one})
            else:
                say("auto-recovery goes on" if had_one else "auto-recovery was not on hold")
            return 0
        hold = begin_hold(cluster.metadata, TimedReason(SystemClock().now_us(), arguments.reason))
    if arguments.json:
        print_json({"hold": {"since_us": hold.since_us, "reason": hold.reason}})
    else:
        say(f"auto-recovery is on hold since {moment(hold.since_us)}: {hold.reason}")
    return 0


def _autorecovery(arguments: argparse.Namespace) -> int:
    changes = {name: None if value == "none" else value for name, value in settings.settings(arguments).items()}
    with cluster_options.cluster(arguments) as cluster:
        config = change_config(cluster.metadata, changes) if changes else load_config(cluster.metadata)
    named = _named(config)
    if arguments.json:
        print_json(named)
    else:
        print_fields((name, "none" if value is None else value) for name, value in named.items())
    return 0


def _named(config: AutoRecoveryConfig) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if name != "kept"}
