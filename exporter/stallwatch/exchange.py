"""Can a server be asked over HTTP, and what does a status say? Known without an HTTP client of 14 MiB."""

import ipaddress
from dataclasses import dataclass

from stallwatch.snapshot import Failure, Server


@dataclass(eq=False, slots=True)
class NotMadeError(Exception):
    """The request could not be made, which says nothing about the server."""

    reason: str
    detail: str


def absence(collector: str, server: Server) -> Failure | None:
    """Say why a server cannot be asked: it has no address, or one that would have to be resolved."""
    if server.address is None or server.launch.port is None:
        word, _, sentence = server.address_absence.partition(":")
        return Failure(collector, word.strip() or "no_address", sentence.strip(), server.name)
    try:
        ipaddress.ip_address(server.address)
    except ValueError:
        return Failure(collector, "address_not_literal", "only a literal address is probed", server.name)
    return None


def result_of_status(status: int) -> str:
    """Name an answer by its status."""
    if 200 <= status < 300:
        return "ok"
    return "unauthorized" if status in (401, 403) else "http_error"
