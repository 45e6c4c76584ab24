"""Markup: that nothing becomes HTML but what was built as such."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwatch.pages.markup import joined, named, tag

HOSTILE = """<script>alert('1')</script> "quoted" & 'single' <img src=x onerror=alert(1)>"""


class Parsed(HTMLParser):
    """The elements, attributes and text of a document."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Note an element."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        """Note text."""
        self.text += data


def test_text_is_escaped_wherever_it_stands():
    """As a child, in a list of children, in an attribute, in a name."""
    html = tag("p", HOSTILE, [HOSTILE, (HOSTILE,)], named(HOSTILE), title=HOSTILE)
    parsed = Parsed(html)
    assert parsed.tags == ["p", "bdi"]
    assert parsed.attributes == [("title", HOSTILE)]
    assert parsed.text == HOSTILE * 4


@given(st.text())
def test_any_text_comes_out_as_it_went_in(text):
    """A browser reads exactly the text that was given, as text and as an attribute."""
    parsed = Parsed(tag("b", text, title=text))
    assert parsed.tags == ["b"]
    assert parsed.attributes == [("title", text)]
    assert parsed.text == text


def test_elements_are_not_escaped_again():
    """What was built by `tag` nests."""
    assert tag("p", tag("b", "a"), " & ", joined(tag("i", "b"), "<")) == "<p><b>a</b> &amp; <i>b</i>&lt;</p>"


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"class_": "a b"}, '<p class="a b"></p>'),
        ({"aria_label": "x"}, '<p aria-label="x"></p>'),
        ({"hidden": True, "open": False, "title": None}, "<p hidden></p>"),
        ({"tabindex": 0}, '<p tabindex="0"></p>'),
        ({"viewBox": "0 0 1 1"}, '<p viewBox="0 0 1 1"></p>'),
    ],
)
def test_attributes(attributes, expected):
    """Words of Python and dashes are spelled as HTML does; None and False are left out, True has no value."""
    assert tag("p", **attributes) == expected


def test_numbers_and_nothing_as_children():
    """A number is its text, None is nothing, and a void element has no end."""
    assert tag("td", 0, None, 1.5) == "<td>01.5</td>"
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
