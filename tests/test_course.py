"""How long the parts of a request took is known of those that are over."""

import ssl

import pytest

from stallwatch.course import Course, TimedContext


@pytest.mark.parametrize(
    ("times", "phases"),
    [
        ({}, {}),
        ({"opening": 1.0}, {}),
        ({"opening": 1.0, "connected": 1.5}, {"connect": 0.5}),
        ({"opening": 1.0, "handshake": 1.25, "connected": 2.0}, {"connect": 0.25, "tls": 0.75}),
        ({"opening": 1.0, "connected": 1.5, "headers": 3.5}, {"connect": 0.5, "first_byte": 2.0}),
        (
            {"opening": 1.0, "connected": 1.5, "headers": 3.5, "body": 3.75},
            {"connect": 0.5, "first_byte": 2.0, "transfer": 0.25},
        ),
    ],
)
def test_only_what_is_over_has_a_time(times, phases):
    """Where there is TLS, connecting ends as the handshake begins."""
    assert Course(lambda: 9.0, **times).phases() == phases


def test_a_handshake_is_noted_in_the_course_of_its_own_request():
    """The context is shared by all requests; by its clock the course that began last in this task is told."""
    context, course, other = TimedContext(ssl.PROTOCOL_TLS_CLIENT), Course(lambda: 7.0), Course(lambda: 8.0)
    other.begin()
    course.begin()
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    assert (course.handshake, other.handshake) == (7.0, None)
