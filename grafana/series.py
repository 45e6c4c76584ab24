"""Which series does a query ask for? Selectors by what the reader has chosen, and the joins that are needed often."""

from collections.abc import Mapping

ANY_NODE = ('job=~"$job"', 'instance=~"$instance"')
ANY_SERVER = (*ANY_NODE, 'server=~"$server"')
THIS_NODE = ('job="$job"', 'instance="$instance"')
THIS_SERVER = (*THIS_NODE, 'server="$server"')
OURS = 'alertname=~"Inference.*|Stallwatch.*"'
RATE = "$__rate_interval"


def select(metric: str, *matchers: str) -> str:
    """Return the selector of a metric with these matchers."""
    return f"{metric}{{{', '.join(matchers)}}}"


def equal(label: str, value: str) -> str:
    """Return the matcher for one value of a label."""
    return f'{label}="{value}"'


def among(label: str, *values: str) -> str:
    """Return the matcher for these values of a label."""
    return f'{label}=~"{"|".join(values)}"'


def nodes(metric: str, *matchers: str) -> str:
    """Return the selector of a metric of every chosen node."""
    return select(metric, *ANY_NODE, *matchers)


def servers(metric: str, *matchers: str) -> str:
    """Return the selector of a metric of every chosen server."""
    return select(metric, *ANY_SERVER, *matchers)


def node(metric: str, *matchers: str) -> str:
    """Return the selector of a metric of the one node."""
    return select(metric, *THIS_NODE, *matchers)


def server(metric: str, *matchers: str) -> str:
    """Return the selector of a metric of the one server."""
    return select(metric, *THIS_SERVER, *matchers)


def coded(metric: str, label: str, codes: Mapping[str, int], scope: tuple[str, ...]) -> str:
    """Return the query that makes one number of a state set: the code of the member that holds."""
    members = (f"{code} * {select(metric, *scope, equal(label, member))}" for member, code in codes.items())
    return f"max without ({label}) ({' or '.join(members)})"


def held(metric: str) -> str:
    """Return a metric of each GPU that the server holds, with the rank on it; a GPU may serve two servers."""
    return f"{server('stallwatch_server_gpu_info')} * ignoring (server, rank) group_left () {node(metric)}"


def age(metric: str, *labels: str) -> str:
    """Return how long ago a published time of the server was, by the clock of its node."""
    snapshot = node("stallwatch_snapshot_timestamp_seconds")
    return f"{snapshot} - ignoring ({', '.join(('server', *labels))}) group_right () {server(metric)}"


def per_second(selector: str) -> str:
    """Return how fast a counter grows."""
    return f"rate({selector}[{RATE}])"


def growth(selector: str) -> str:
    """Return by how much a counter has grown since the last point."""
    return f"increase({selector}[{RATE}])"
