"""The exporter is killed at any moment: it comes back without a false page, and knows what it knew."""

import asyncio
import contextlib
import random
import signal

from crowd import Server, crowd_program, running
from exporter_process import ExporterProcess
from stallwatch.simulation.pager import free_port

__all__ = ["crowd_program"]

QUICK = {"INTERVAL": "250ms", "DISCOVERY__INTERVAL": "500ms", "HEALTH__INTERVAL": "1s", "COLLECTORS__GPU": "false"}
KILLS = 3


async def scraped_without_end(exporter):
    """Have it render all the time."""
    while True:
        with contextlib.suppress(OSError):
            await exporter.get()


async def test_killed_again_and_again_it_knows_what_it_knew(crowd_program, tmp_path):
    """SIGKILL while it renders: a dead server stays dead, one that is well is well, restarts stay counted."""
    well, dead = (Server(crowd_program, free_port(), tmp_path / f"{name}.log") for name in ("well", "dead"))
    memory, dice = tmp_path / "state" / "memory.json", random.Random(3)
    settings = {**QUICK, "STATE__ENABLED": "true", "STATE__FILE": memory, "LIMITS__LOST_PROCESS": "1s"}
    exporter = ExporterProcess(**settings)

    def known(scrape):
        restarts = scrape.value("server_restarts_total", server=well.name)
        return (restarts, scrape.holding("server_verdict", "verdict", server=dead.name)) == (1, {"dead"})

    def born(scrape):
        return scrape.value("process_start_time_seconds", server=well.name, process="scheduler_TP0")

    with running([well, dead]):
        async with exporter:
            await exporter.until(
                lambda s: all(s.value("server_restarts_total", server=x.name) == 0 for x in (well, dead))
            )
            well.stop()
            dead.stop()
            well.start()
            before = await exporter.until(known)
            await exporter.stop()  # after which all is kept, without waiting for its time
            await exporter.start()
            await exporter.until(known)
            for _ in range(KILLS):
                scraping = [asyncio.create_task(scraped_without_end(exporter)) for _ in range(2)]
                await asyncio.sleep(dice.uniform(0, 1.5))
                await exporter.stop(signal.SIGKILL)
                for task in scraping:
                    task.cancel()
                await exporter.start()
                scrape = await exporter.until(lambda s: born(s) is not None)
                verdict = scrape.holding("server_verdict", "verdict", server=well.name)
                assert not verdict & {"stalled", "dead", "suspect"}, verdict
            after = await exporter.until(known)
            assert abs(born(after) - born(before)) < 0.1
            assert abs(since(after, dead) - since(before, dead)) < 3
            assert exporter.log.count("what was kept cannot be used") == 0
            assert "Traceback" not in exporter.log


def since(scrape, server):
    """Return since when the verdict of a server holds."""
    return scrape.value("server_verdict_start_timestamp_seconds", server=server.name)


async def test_a_server_that_dies_while_the_exporter_is_down_is_told_of(crowd_program, tmp_path):
    """Whoever restarts the exporter hides no crash."""
    server = Server(crowd_program, free_port(), tmp_path / "server.log")
    memory = tmp_path / "memory.json"
    settings = {**QUICK, "STATE__ENABLED": "true", "STATE__FILE": memory, "LIMITS__LOST_PROCESS": "2s"}
    exporter = ExporterProcess(**settings)
    with running([server]):
        async with exporter:
            await exporter.until(lambda s: s.value("signal_success", server=server.name, signal="log") == 1)
            await exporter.stop()
            server.stop()
            await exporter.start()
            await exporter.until(lambda s: "dead" in s.holding("server_verdict", "verdict", server=server.name))
            assert "Traceback" not in exporter.log
