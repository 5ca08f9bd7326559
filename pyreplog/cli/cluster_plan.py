"""`pyreplog cluster plan`: what quorums, racks, disks and failure rates mean, on paper and in a simulation."""

from __future__ import annotations

import argparse
import dataclasses
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyreplog.autorecovery.durability_model import Plan, PlanInputs, loss_rates, make_plan
from pyreplog.cli.shared.output import amount, counted, duration, print_fields, print_json, say

if TYPE_CHECKING:
    from pyreplog.autorecovery.durability_simulation import SimulatedDurability
    from pyreplog.autorecovery.poisson_interval import Interval

HELP = "work out what quorums, racks, disks and failure rates mean for durability, rebuild time and cost"
_PREFIX = "plan_"  # `--bookies` means something else before the name of the action


def add_actions(actions: Any) -> None:
    """Add the action `plan` to those of `pyreplog cluster`."""
    parser = actions.add_parser("plan", help=HELP, description=f"{HELP}: docs/durability.md has the formulas")
    for field in dataclasses.fields(PlanInputs):
        default, kind = field.default, int if field.type == "int" else float
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", dest=_PREFIX + field.name, metavar="N", type=kind, default=default,
            help=f"{field.metadata['help'].replace('%', '%%')} (default {default:g})",
        )  # fmt: skip
    add = parser.add_argument
    add("--simulate", metavar="YEARS", type=float, help="draw the failures of so many years at random, too")
    add("--seed", metavar="N", type=int, default=0, help="of the simulation (default 0)")
    add(
        "--raise", dest="raised", metavar="F", type=float, default=1.0,
        help="simulate losses of bookies and racks F times as often, and count each loss accordingly less (default 1)",
    )  # fmt: skip
    parser.set_defaults(action=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    names = [field.name for field in dataclasses.fields(PlanInputs)]
    inputs = PlanInputs.of({name: getattr(arguments, _PREFIX + name) for name in names})
    plan, simulated = make_plan(inputs), None
    if arguments.simulate is not None:
        from pyreplog.autorecovery.durability_simulation import DurabilitySimulation

        simulation = DurabilitySimulation(inputs, seed=arguments.seed, raised=arguments.raised)
        simulated = simulation.run(arguments.simulate)
    if arguments.json:
        print_json(_finite(_as_json(inputs, plan, simulated)))
    else:
        _print(inputs, plan)
        if simulated is not None:
            _print_simulated(inputs, plan, simulated)
    return 0


def _as_json(inputs: PlanInputs, plan: Plan, simulated: SimulatedDurability | None) -> dict[str, Any]:
    document = {"inputs": asdict(inputs), **asdict(plan)}
    if simulated is not None:
        intervals = {name: getattr(simulated, name)._asdict() for name in ("losses_per_year", "events_per_year")}
        document["simulated"] = {**asdict(simulated), **intervals}
    return document


def _finite(value: Any) -> Any:
    """JSON has neither infinity nor "not a number"."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(inputs: PlanInputs, plan: Plan) -> None:
    ledgers = f"{counted(inputs.ledgers, 'ledger')} of {amount(inputs.ledger_bytes)}"
    quorums = f"E={inputs.ensemble} Qw={inputs.write_quorum} Qa={inputs.ack_quorum}"
    say(f"{quorums} on {counted(inputs.bookies, 'bookie')} in {counted(inputs.racks, 'rack')}: {ledgers}")
    for title, fields in (
        ("durability, in a year", _durability(plan)),
        ("a bookie is lost", _rebuild(plan)),
        ("a rack is lost", _rack_loss(inputs, plan)),
        ("copied in a year", _traffic(plan)),
        ("cost", _cost(plan)),
        ("an add has too few bookies", _availability(plan)),
        ("bounds", _limits(plan)),
    ):
        say()
        say(title)
        print_fields((f"  {name}", value) for name, value in fields)


def _durability(plan: Plan) -> list[tuple[str, str]]:
    durability = plan.durability
    return [
        ("loss of one ledger", f"{durability.ledger_losses:.2g}  ({durability.ledger_nines:.1f} nines)"),
        (
            "ledgers lost",
            f"{durability.cluster_losses:.2g}, of which {durability.latent_share:.0%} by unreadable last copies",
        ),
        ("loss of any ledger", f"{durability.cluster_probability:.2g}  ({durability.cluster_nines:.1f} nines)"),
    ]


def _rebuild(plan: Plan) -> list[tuple[str, str]]:
    rebuild = plan.rebuild
    return [
        ("copied", amount(rebuild.bookie_bytes)),
        ("until all copies are there", f"{duration(rebuild.total_s)}: {duration(rebuild.waiting_s)} before it begins"),
        (
            "load of each other bookie",
            f"{rebuild.network_share:.1%} of its network, {rebuild.disk_share:.1%} of its disks",
        ),
    ]


def _rack_loss(inputs: PlanInputs, plan: Plan) -> list[tuple[str, str]]:
    rack_loss = plan.rack_loss
    left = (
        "entries are lost at once"
        if rack_loss.ledgers_lost
        else f"{counted(rack_loss.copies_left, 'copy')} left of each entry"
    )
    writes = "continue" if rack_loss.writes_continue else f"stop where Qa={inputs.ack_quorum} bookies are not left"
    return [
        ("bookies", f"{rack_loss.bookies:,.1f}; {left}"),
        ("writes", writes),
        ("copied", f"{amount(rack_loss.bytes)}; the disks are then {rack_loss.fill_after:.0%} full"),
        ("until all copies are there", duration(rack_loss.waiting_s + rack_loss.copying_s)),
    ]


def _traffic(plan: Plan) -> list[tuple[str, str]]:
    traffic = plan.traffic
    fields = [
        ("lost bookies", amount(traffic.lost_bookies)),
        ("lost racks", amount(traffic.lost_racks)),
        ("outages longer than the delay", amount(traffic.outages)),
        ("read by scrubs", amount(traffic.scrubbed)),
    ]
    if traffic.share_of_writes:
        fields.append(("beside what clients write", f"{traffic.share_of_writes:.1%}"))
    return fields


def _cost(plan: Plan) -> list[tuple[str, str]]:
    cost = plan.cost
    return [
        ("bytes on disks for one of entries", f"{cost.storage_factor:.2f}; the disks are {cost.fill:.0%} full"),
        ("bytes written for one appended", f"{cost.write_amplification:.2f}"),
    ]


def _availability(plan: Plan) -> list[tuple[str, str]]:
    availability = plan.availability
    return [
        ("no bookie can replace one that is away", f"{availability.without_spare:.2g}"),
        ("writers replace it", f"{availability.with_spare:.2g}"),
    ]


def _limits(plan: Plan) -> list[tuple[str, str]]:
    limits = plan.limits
    return [
        ("ledgers that metadata have room for", f"{limits.ledgers_by_memory:,.0f}"),
        ("ledgers that an auditor scans in time", f"{limits.ledgers_by_scan:,.0f}"),
        ("ledgers until metadata bound a rebuild", f"{limits.ledgers_by_rebuild:,.0f}"),
        ("bookies until more do not help", f"{limits.bookies_by_rebuild:,.0f}"),
    ]


def _print_simulated(inputs: PlanInputs, plan: Plan, found: SimulatedDurability) -> None:
    say()
    failures = f"{counted(found.bookie_losses, 'bookie')} and {counted(found.rack_losses, 'rack')} lost"
    say(f"simulated: {found.years:g} years, seed {found.seed}: {failures}, {found.long_outages:,} long outages")
    if found.raised > 1:
        say(
            f"bookies and racks were lost {found.raised:g} times as often as stated; a loss of entries that took m of"
            f" these failures counts {found.raised:g}^-m, and traffic is divided"
        )
    say(f"ledgers lost with all copies: {found.ledgers_lost:,}, in {counted(found.coincidences, 'coincidence')}")
    latent = plan.durability.cluster_losses * plan.durability.latent_share
    rates, durability, traffic = loss_rates(inputs), plan.durability, plan.traffic
    rows = [
        ("", "model", "simulated"),
        ("ledgers lost in a year", f"{durability.cluster_losses:.2g}", _interval(found.losses_per_year)),
        ("times any ledger is lost", f"{durability.cluster_events:.2g}", _interval(found.events_per_year)),
        ("by unreadable last copies", f"{latent:.2g}", f"{found.latent_per_year:.2g}"),
        ("a lost bookie's copy is back", duration(rates.single_s), _span(found.single_s)),
        ("a lost rack's copy is back", duration(rates.rack_s), _span(found.rack_s)),
        ("copied for bookies", amount(traffic.lost_bookies), amount(found.copied_for_bookies)),
        ("copied for racks", amount(traffic.lost_racks), amount(found.copied_for_racks)),
        ("copied for outages", amount(traffic.outages), amount(found.copied_for_outages)),
    ]  # fmt: skip
    width = max(len(name) for name, _, _ in rows)
    for name, model, simulated in rows:
        say(f"  {name:<{width}}  {model:>12}  {simulated}")


def _interval(interval: Interval) -> str:
    if not interval.estimate:
        return f"none; below {interval.high:.2g} (rule of three, 95 %)"
    return f"{interval.estimate:.2g}  (95 %: {interval.low:.2g} to {interval.high:.2g})"


def _span(seconds: float) -> str:
    return "none was lost" if math.isnan(seconds) else duration(seconds)
