"""Steps: each kind of trouble has the first steps of its runbook, in five lines, and a server that is well has none."""

import pytest

from stallwatch.terminal.steps import first_steps, runbook_of
from stallwatch.verdict import SIGNATURES, VERDICTS

TROUBLE = ("stalled", "suspect", "slow", "dead", "unknown")


@pytest.mark.parametrize("verdict", TROUBLE)
@pytest.mark.parametrize("signature", ["", *SIGNATURES])
def test_each_trouble_has_steps_in_five_lines(verdict, signature):
    """Under a heading that names the runbook, and none that only reads what stands above."""
    heading, *steps = [line.text for line in first_steps(verdict, signature)]
    assert runbook_of(verdict, signature) in heading
    assert 1 <= len(steps) <= 5
    assert steps[0].startswith("  1. ")
    assert max(map(len, steps)) <= 100
    assert "/metrics" not in " ".join(steps)


@pytest.mark.parametrize("verdict", [verdict for verdict in VERDICTS if verdict not in TROUBLE])
def test_who_is_well_is_left_alone(verdict):
    """Nothing is to be done."""
    assert first_steps(verdict, "") == []


def test_the_signature_says_where_to_look_and_the_last_step_what_to_save():
    """A restart destroys the stacks; what is only for another signature is left out."""
    text = " ".join(line.text.strip() for line in first_steps("stalled", "rendezvous"))
    assert "1. `rendezvous`: look at the other nodes" in text
    assert text.endswith("Do not kill it before the stacks and the log are saved.")
    assert "`slow_load`" not in " ".join(line.text for line in first_steps("slow", "compiling"))


def test_a_runbook_that_is_not_there_is_no_error(tmp_path):
    """A package without its bundle tells the rest."""
    assert first_steps("stalled", "", folder=tmp_path) == []
