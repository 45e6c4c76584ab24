"""Deltas: what has changed leads to what is there now, however little that says."""

import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_parts import QUICK
from readings import a_sample, gpus
from stallwatch.deltas import SAME, changed, changes

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False), st.text(max_size=2)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab=0"), inner, max_size=3),
)


@dataclass(frozen=True)
class One:
    """A thing of one field."""

    value: int


def led(old, new):
    """Return where the change from one value to another leads, over JSON and back."""
    change = changes(old, new)
    return old if change is SAME else changed(json.loads(json.dumps(old)), json.loads(json.dumps(change)))


@QUICK
@given(JSON, JSON)
def test_a_change_leads_from_any_value_to_any_other(old, new):
    """Also where keys look like those of a change."""
    assert led(old, new) == new
    assert led([old, {"a": old, "b": 1}], [old, {"a": new, "b": 2}]) == [old, {"a": new, "b": 2}]


def test_only_what_has_changed_is_said():
    """By the names of fields, the places in lists and the keys of mappings."""
    sample = a_sample()
    assert changes((sample, sample), (sample, replace(sample, cpu_seconds=2.0, state="R"))) == {
        1: {"cpu_seconds": 2.0, "state": "R"}
    }
    assert changes({"x": One(1), "y": (1, 2)}, {"x": One(2), "y": (1, 3)}) == {"x": {"value": 2}, "y": {1: 3}}


def test_what_is_equal_has_not_changed():
    """Though it was read anew."""
    assert changes(gpus(5.0), gpus(5.0)) is SAME
    assert changes((), ()) is SAME


def test_what_is_empty_now_is_told_apart():
    """So is what has become another kind of thing."""
    assert changes((1,), ()) == {"=": ()}
    assert changes({"a": 1}, {}) == {"=": {}}
    assert changes(One(1), None) is None
    assert changes(None, One(1)) == {"=": One(1)}


@pytest.mark.parametrize(
    "change", [{"b": 1}, {"a": {"c": 1}}, {"a": {"2": 1}}, {"a": {"-1": 1}}, {"a": {"9" * 5000: 1}}]
)
def test_a_change_of_what_is_not_there_is_refused(change):
    """It says which."""
    with pytest.raises(ValueError, match="there was no such thing before"):
        changed({"a": [1, 2]}, change)
