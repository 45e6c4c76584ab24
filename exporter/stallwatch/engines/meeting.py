"""Which servers on several nodes are one? Those that meet at one address, however each node writes it."""

import ipaddress

from stallwatch.snapshot import Launch


def group_of(launch: Launch) -> str:
    """Return what all nodes of a server of several nodes have in common; empty for one node, or where nothing tells.

    An address that means another machine on each node (loopback, or any) tells nothing. Names are not looked up: a
    server whose nodes are given different names of one machine needs `servers[].group`.
    """
    if launch.nnodes < 2:
        return ""
    host, port = _parted(launch.dist_init_addr.strip().rpartition("://")[2].rstrip("/").lower())
    host = host.rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "" if host in {"", "localhost"} else f"{host}{port}"
    if address.is_loopback or address.is_unspecified:
        return ""
    return f"[{address}]{port}" if port and address.version == 6 else f"{address}{port}"


def _parted(text: str) -> tuple[str, str]:
    """Return host and port, the latter with its colon; an IPv6 address alone has colons of its own."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port
    host, colon, port = text.rpartition(":")
    return (host, f":{port}") if colon and port.isdecimal() and ":" not in host else (text, "")
