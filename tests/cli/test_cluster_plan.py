"""`pyreplog cluster plan`: every input is an option; results for people and programs; the simulation beside the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyreplog.autorecovery.durability_model import PlanInputs
from tests.cli.support import Run

SMALL = ("--bookies", 20, "--racks", 5, "--ledgers", 500, "--ledger-bytes", 1e6, "--outages-per-year", 1)
DOCUMENT = Path(__file__).parents[2] / "docs" / "durability.md"


def test_the_defaults_are_those_of_the_documents(run: Run) -> None:
    report = run("cluster", "plan", "--json").json
    assert report["inputs"] == dataclasses.asdict(PlanInputs())
    assert report["durability"]["ledger_nines"] == pytest.approx(10.1, abs=0.05)
    text = run("cluster", "plan").out
    assert "E=3 Qw=3 Qa=2 on 1,000 bookies in 40 racks: 1,000,000 ledgers of 1.0 GiB" in text
    assert "(10.1 nines)" in text and "of which 84% by unreadable last copies" in text


@pytest.mark.parametrize("field", dataclasses.fields(PlanInputs), ids=lambda field: field.name)
def test_every_input_is_an_option(run: Run, field: dataclasses.Field[object]) -> None:
    option = f"--{field.name.replace('_', '-')}"
    value = getattr(PlanInputs(), field.name)
    given = (
        2
        if field.name == "ack_quorum"
        else 3
        if value == 3
        else (value * 1.25 or 1.0)
        if isinstance(value, float)
        else value
    )
    report = run("cluster", "plan", "--json", option, given).json
    assert report["inputs"][field.name] == given
    assert f"`{option}`" in DOCUMENT.read_text()
    with pytest.raises(SystemExit):
        run("cluster", "plan", option, "none")


def test_a_simulation_is_printed_beside_the_model(run: Run) -> None:
    result = run(
        "cluster", "plan", *SMALL, "--simulate", 2, "--seed", 5, "--raise", 300, "--ensemble", 2, "--write-quorum", 2,
        "--ack-quorum", 1,
    )  # fmt: skip
    assert result.code == 0 and "simulated: 2 years, seed 5" in result.out
    assert "were lost 300 times as often as stated" in result.out and "300^-m" in result.out
    assert "(95 %: " in result.out
    data = run("cluster", "plan", *SMALL, "--simulate", 1, "--json").json["simulated"]
    assert (data["years"], data["seed"], data["raised"], data["ledgers_lost"]) == (1, 0, 1, 0)
    assert data["losses_per_year"]["high"] == 3.0
    nothing = run("cluster", "plan", *SMALL, "--simulate", 1).out
    assert "none; below 3 (rule of three, 95 %)" in nothing


def test_numbers_that_json_does_not_have_are_null(run: Run) -> None:
    report = run("cluster", "plan", *SMALL, "--racks", 1, "--json").json
    assert report["rack_loss"]["fill_after"] is None


def test_impossible_inputs_end_with_their_names(run: Run) -> None:
    refused = run("cluster", "plan", "--racks", 0)
    assert refused.code == 2 and "racks: expected 1 to 100000, found 0" in refused.error
    assert "raised: expected 1 to" in run("cluster", "plan", *SMALL, "--simulate", 1, "--raise", 0.1).error
    assert "years: expected more than 0" in run("cluster", "plan", *SMALL, "--simulate", 0).error
