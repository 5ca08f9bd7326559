"""`pyreplog ha rocketmq-slave` and `rocketmq-master`: RocketMQ's HA protocol, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import ExitStack

from pyreplog.cli.shared import serving
from pyreplog.cli.shared.output import print_json, say
from pyreplog.net.reactor import Reactor
from pyreplog.net.sockets import address_text
from pyreplog.rocketmq import RawLog, RocketMQMaster, RocketMQSlave, SlaveState

logger = logging.getLogger(__name__)

_POLL_S = 0.2


def add_slave_arguments(parser: argparse.ArgumentParser) -> None:
    _add_log(parser)
    parser.add_argument("--master", metavar="HOST:PORT", required=True, help="a broker's haListenPort")
    parser.add_argument(
        "--from",
        metavar="N",
        type=int,
        dest="start",
        help="of a new copy: begin with the file at N; 0: all (default: the last file)",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="feed further slaves at this address")


def add_master_arguments(parser: argparse.ArgumentParser) -> None:
    _add_log(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default 127.0.0.1:0, a free port")
    parser.add_argument("--throttle-bytes-per-s", metavar="N", type=int, help="limit for one slave")


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="directory with the layout of a broker's store; created if needed"
    )
    parser.add_argument("--file-bytes", metavar="N", type=int, help="mappedFileSizeCommitLog of a new store (1 GiB)")
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
        forwarder = (
            None
            if listen is None
            else stack.enter_context(RocketMQMaster(reactor, log, host=listen[0], port=listen[1]))
        )
        on_appended = None if forwarder is None else forwarder.wake
        slave = stack.enter_context(RocketMQSlave(reactor, log, master, start=arguments.start, landed=on_appended))
        _announce(arguments, "slave", log, forwarder)
        logged = ""
        while slave.state is not SlaveState.STOPPED and not stop.wait(_POLL_S):
            logged = _log_trouble(slave, logged)
        if slave.state is SlaveState.STOPPED and slave.error is not None:
            raise slave.error
        serving.Drain(arguments.drain_s)
    return 0


def _log_trouble(slave: RocketMQSlave, logged: str) -> str:
    """Log why there is no connection, unless that was logged last. Return the last logged text."""
    trouble = "" if slave.state is SlaveState.STREAMING or slave.error is None else str(slave.error)
    if trouble not in ("", logged):
        logger.warning("%s; connecting again", trouble)
    return trouble or logged


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
    listen_address = None if master is None else address_text(master.address)
    if arguments.json:
        print_json(
            {
                "role": role,
                "start": log.start,
                "end": log.end,
                **({} if listen_address is None else {"address": listen_address}),
            }
        )
    else:
        say(
            f"RocketMQ {role}, {log.start} to {log.end}",
            "" if listen_address is None else f", at {listen_address}",
            sep="",
        )
        sys.stdout.flush()
