"""Encoding: the lines are those that prometheus_client would write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest as text_of
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_of

from stallwatch.encoding import END, encoded
from stallwatch.snapshot import Family

OFFICIAL = {False: text_of, True: openmetrics_of}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.floats() | st.integers(-(10**18), 10**18).map(float)


class Registry:
    """What prometheus_client's encoders ask for families."""

    def __init__(self, families):
        self._families = families

    def collect(self):
        """Return the families as prometheus_client knows them."""
        for family in self._families:
            name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
            metric = Metric(name, family.help, family.kind)
            for values, value in family.samples:
                metric.add_sample(family.name, dict(zip(family.labels, values, strict=True)), value)
            yield metric


@st.composite
def a_family(draw):
    """Draw a family whose samples are all different ones, and counts not negative."""
    kind = draw(st.sampled_from(("gauge", "counter")))
    labels = draw(st.sampled_from(((), ("server",), ("server", "process"), ("zone", "a_b", "gpu"))))
    values = VALUES.filter(lambda value: kind == "gauge" or not value < 0)
    found = draw(st.dictionaries(st.tuples(*[TEXT] * len(labels)), values, min_size=1, max_size=4))
    name = "stallwatch_x_total" if kind == "counter" else "stallwatch_x"
    return Family(name, draw(TEXT), kind, labels, tuple(found.items()))


@pytest.mark.parametrize("openmetrics", [False, True])
@given(families=st.lists(a_family(), max_size=3))
def test_it_writes_what_prometheus_client_would(openmetrics, families):
    """Names, help texts, labels in their order, values and all that has to be escaped are the same bytes."""
    official = OFFICIAL[openmetrics](Registry(families))
    assert encoded(families, openmetrics=openmetrics) + (END if openmetrics else b"") == official


def test_a_sample_that_is_there_twice_is_stated_once():
    """A duplicate never fails a scrape."""
    family = Family("stallwatch_x", "X.", "gauge", ("a",), ((("1",), 1.0), (("1",), 2.0)))
    assert encoded([family], openmetrics=False).splitlines()[2:] == [b'stallwatch_x{a="1"} 1.0']


def test_a_count_that_is_negative_is_none():
    """Prometheus would take it for a reset at each scrape."""
    family = Family("stallwatch_x_total", "X.", "counter", ("a",), ((("1",), -1.0), (("2",), 2.0)))
    assert encoded([family], openmetrics=False).splitlines()[2:] == [b'stallwatch_x_total{a="2"} 2.0']


def test_a_family_without_samples_is_left_out():
    """Nothing is said of what nobody has."""
    assert encoded([Family("stallwatch_x", "X.", "gauge", (), ())], openmetrics=True) == b""


def test_labels_and_values_must_fit():
    """A fault of ours in a family is an error that names it."""
    family = Family("stallwatch_x", "X.", "gauge", ("a",), ((("1", "2"), 1.0),))
    with pytest.raises(ValueError, match="stallwatch_x has 1 labels, and a sample of it 2"):
        encoded([family], openmetrics=False)
