"""How is a scenario played in virtual time? As the readings that the collectors would have made of it, look by look."""

from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import SocketReading
from stallwatch.simulation import virtualhttp, virtuallogs, virtualprocesses
from stallwatch.simulation.player import UPTIME, Player
from stallwatch.simulation.plot import Scenario
from stallwatch.simulation.virtualgpus import VirtualGpus
from stallwatch.simulation.virtualkernel import VirtualKernel
from stallwatch.snapshot import Moment, Reading, Snapshot

EPOCH = 1_800_000_000.0


class VirtualNode:
    """The node of a scenario, looked at again and again in virtual time."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.players = [Player.of(played, number, scenario.node) for number, played in enumerate(scenario.servers)]
        self._gpus = VirtualGpus(scenario.node)
        self._kernel = VirtualKernel()
        self._steps = [(event.at, event.seconds) for event in scenario.watcher if event.what == "clock_step"]

    def moment(self, t: float) -> Moment:
        """Return the moment at a time of the scenario; the wall clock may have been stepped."""
        stepped = sum(seconds for at, seconds in self._steps if at <= t)
        return Moment(EPOCH + t + stepped, UPTIME + t, UPTIME + t)

    def look(self, t: float, step: float) -> Snapshot:
        """Return what is read at this time; `step` is how long ago the look before was."""
        moment = self.moment(t)
        for player in self.players:
            player.advance(t)
        present = [player for player in self.players if player.state.there]
        return Snapshot(moment, tuple(player.seen() for player in present), self._readings(present, t, step, moment))

    def _readings(self, present: list[Player], t: float, step: float, moment: Moment) -> tuple[Reading, ...]:
        now = moment.monotonic
        readings: list[Reading] = []
        if gpus := self._gpus.reading(present, t, step, now):
            readings.append(gpus)
        if told := self._kernel.reading(present, now):
            readings.append(told)
        samples = [sample for player in present for sample in virtualprocesses.samples(player, t, step)]
        if samples:
            trees = (virtualprocesses.tree(player, t, step) for player in present)
            readings.append(ProcessReading(now, tuple(samples), tuple(tree for tree in trees if tree)))
        logs = tuple(log for player in self.players if (log := virtuallogs.log_of(player, moment)))
        if logs:
            readings.append(LogReading(now, logs))
        for player in present:
            readings += virtualhttp.health(player, t, now)
            readings += virtualhttp.engine(player, t, step, now)
        if sockets := tuple(found for player in present if (found := virtualhttp.sockets(player, t))):
            readings.append(SocketReading(now, sockets))
        return tuple(readings)
