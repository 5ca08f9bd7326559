"""`pyreplog ha rocketmq-slave` and `rocketmq-master`: RocketMQ's HA protocol, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import ExitStack

from pyreplog.cli.shared import serving
from pyreplog.cli.shared.output import print_json, say
from pyreplog.net.reactor import Reactor
from pyreplog.rocketmq import RawLog, RocketMQMaster, RocketMQSlave, SlaveState

logger = logging.getLogger(__name__)

_LOOK_S = 0.2


def add_slave_arguments(parser: argparse.ArgumentParser) -> None:
    _add_log(parser)
    parser.add_argument("--master", metavar="HOST:PORT", required=True, help="a broker's haListenPort")
    parser.add_argument(
        "--from", metavar="N", type=int, dest="start", help="of a new copy: from the file at N on, 0: all (last file)"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="pass it on to slaves of this one")


def add_master_arguments(parser: argparse.ArgumentParser) -> None:
    _add_log(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument("--throttle-bytes-per-s", metavar="N", type=int, help="of the log, to one slave")


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="laid out as a broker's store; made if need be")
    parser.add_argument("--file-bytes", metavar="N", type=int, help="mappedFileSizeCommitLog, of a new one (1 GiB)")
    serving.add_drain_argument(parser)


def run_slave(arguments: argparse.Namespace) -> int:
    master = serving.host_and_port("--master", arguments.master)
    listen = None if arguments.listen is None else serving.host_and_port("--listen", arguments.listen)
    stop = serving.stopped_by_signals()
    with (
        RawLog(arguments.directory, file_bytes=arguments.file_bytes) as log,
        Reactor() as reactor,
        ExitStack() as stack,
    ):
        reactor.start()
        on = (
            None
            if listen is None
            else stack.enter_context(RocketMQMaster(reactor, log, host=listen[0], port=listen[1]))
        )
        landed = None if on is None else on.wake
        slave = stack.enter_context(RocketMQSlave(reactor, log, master, start=arguments.start, landed=landed))
        _announce(arguments, "slave", log, on)
        told = ""
        while slave.state is not SlaveState.STOPPED and not stop.wait(_LOOK_S):
            told = _tell(slave, told)
        if slave.state is SlaveState.STOPPED and slave.error is not None:
            raise slave.error
        serving.Drain(arguments.drain_s)
    return 0


def _tell(slave: RocketMQSlave, told: str) -> str:
    """Say why there is no connection, if that was not said before; what was said."""
    trouble = "" if slave.state is SlaveState.STREAMING or slave.error is None else str(slave.error)
    if trouble not in ("", told):
        logger.warning("%s; it is tried again", trouble)
    return trouble or told


def run_master(arguments: argparse.Namespace) -> int:
    host, port = serving.host_and_port("--listen", arguments.listen)
    stop = serving.stopped_by_signals()
    with RawLog(arguments.directory, file_bytes=arguments.file_bytes) as log, Reactor() as reactor:
        reactor.start()
        with RocketMQMaster(
            reactor, log, host=host, port=port, max_bytes_per_s=arguments.throttle_bytes_per_s
        ) as master:
            _announce(arguments, "master", log, master)
            stop.wait()
            serving.Drain(arguments.drain_s)
    return 0


def _announce(arguments: argparse.Namespace, role: str, log: RawLog, master: RocketMQMaster | None) -> None:
    at = None if master is None else serving.address(*master.address)
    if arguments.json:
        print_json({"role": role, "start": log.start, "end": log.end, **({} if at is None else {"address": at})})
    else:
        say(f"RocketMQ {role}, {log.start} to {log.end}", "" if at is None else f", at {at}", sep="")
        sys.stdout.flush()
