"""What would the status page show of a scenario? Its view and half hour at one moment, played in virtual time."""

from dataclasses import dataclass

from stallwatch.collectors import engine, gpu, health, log, process, socket
from stallwatch.lanes import LaneState
from stallwatch.replay import Look, play
from stallwatch.simulation.plot import Scenario
from stallwatch.trends import Trends
from stallwatch.view import View

COLLECTORS = (gpu.NAME, process.NAME, log.NAME, socket.NAME, health.NAME, engine.NAME)


@dataclass(frozen=True, slots=True)
class Shown:
    """What the exporter would know at one moment."""

    view: View
    trends: Trends


def shown(scenario: Scenario, at: float, step: float = 5.0) -> Shown:
    """Play a scenario until `at` seconds from its start and return what is known then."""
    trends, view = Trends(), None
    for look in play(scenario, step):
        if look.t > at:
            break
        view = view_of(look)
        trends.take(view)
    if view is None:
        raise ValueError(f"{scenario.name}: nothing is looked at in the first {at:g} s")
    return Shown(view, trends)


def view_of(look: Look) -> View:
    """Return a look as the view of an exporter that is well."""
    lanes = tuple(LaneState(name, "", True, 0.0, look.moment.monotonic, ()) for name in COLLECTORS)
    return View(look.snapshot, look.pasts, lanes, (), look.verdicts, look.not_ready_seconds)
