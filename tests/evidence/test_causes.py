"""The class of cause: one sentence for each way in which a server hangs."""

import pytest

from stallwatch.evidence.causes import CAUSES, NO_CAUSE, cause_of
from stallwatch.verdict import SIGNATURES


@pytest.mark.parametrize("signature", SIGNATURES)
def test_every_hang_has_a_class_of_cause(signature):
    """Those that are no hang have none."""
    assert (cause_of(signature) == NO_CAUSE) == (signature in {"slow_load", "compiling"})


def test_no_class_is_of_a_signature_that_is_never_given():
    """And what is not known at all has none."""
    assert set(CAUSES) <= set(SIGNATURES)
    assert cause_of("") == cause_of("no such one") == NO_CAUSE
