"""The GPUs can be given up for a time: nothing of ours uses the driver then, that is said, and they come back."""

import asyncio
import os
import signal
import sys

import pytest
from aiohttp.test_utils import TestClient, TestServer

from exporter_process import ExporterProcess
from faulty_node import FAST, STUCK, reasons
from monitored_node import QUICK, Node
from nvml_library import environment, write_state
from readings import gpus
from stallwatch.exposition import Exposition
from stallwatch.orders import release_gpu
from stallwatch.release import LONGEST_SECONDS, USUAL_SECONDS, Release, Released, seconds_of
from stallwatch.report import report
from stallwatch.sections import WebConfig
from stallwatch.snapshot import Moment
from stallwatch.terminal.servers import lines
from stallwatch.web import Orders, application
from test_exposition import a_view


class Letting:
    """A worker that lets go of the driver, or does not."""

    def __init__(self, *holders):
        self.holders = holders
        self.asked = 0

    async def give_up(self, within):
        """Answer with what is left."""
        self.asked += 1
        return self.holders


class Clock:
    """A clock that goes when told to."""

    def __init__(self):
        self.now = 1_800_000_000.0

    def __call__(self):
        """Return the present moment."""
        return Moment(self.now, self.now - 1e9, 5.0)


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("1s", 1), ("90", 90), ("24h", LONGEST_SECONDS)])
def test_how_long(text, seconds):
    """Durations as everywhere else, up to a day."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5m", "25h", "soon", "nan", "1e3"])
def test_no_duration(text):
    """What is none is refused with a sentence."""
    with pytest.raises(ValueError, match="above 0 and up to 24h, such as 5m"):
        seconds_of(text)


async def test_a_release_ends_by_itself_or_by_another():
    """It lasts as long as was said last, and then there is no reason any more."""
    clock = Clock()
    release = Release(Letting(), clock)
    assert release.failure() is None
    release.begin(300)
    assert (await release.carry_out()).until == 1_800_000_300.0
    failure = release.failure()
    assert (failure.collector, failure.reason, failure.harmless) == ("gpu", "released", True)
    assert failure.detail == "until 2027-01-15T08:05:00Z"
    clock.now += 299
    assert release.until is not None
    release.begin(1)
    clock.now += 1
    assert (release.until, release.failure()) == (None, None)


@pytest.fixture
async def node():
    """Have a monitor over fake workers, of which that of the GPUs can let go."""
    made = Node(QUICK)
    made.gpu.give_up = Letting().give_up
    yield made
    await made.monitor.close()


async def test_released_gpus_are_missing_and_nothing_fails(node):
    """From the next look on no reading of them, no success or failure of the collector, no worker that is down."""
    await node.ticks(3)
    asked = node.gpu.count("gpu")
    released = await node.monitor.release_gpu(20.0)
    assert released.holders == ()
    view = await node.ticks(10)
    assert node.gpu.count("gpu") == asked
    assert node.reasons("gpu") == {"released"}
    assert node.lane("gpu").success is None
    assert [worker.name for worker in view.workers] == ["host", "trial"]
    assert report(view)["gpu_released_until"] == pytest.approx(released.until, abs=0.1)
    (verdict,) = view.verdicts.values()
    assert "gpu: released" in verdict.missing
    assert verdict.state not in {"stalled", "dead"}
    view = await node.ticks(20)
    assert node.reasons("gpu") == set()
    assert node.lane("gpu").success is True
    assert [worker.name for worker in view.workers] == ["gpu", "host", "trial"]
    assert "gpu_released_until" not in report(view)


def test_check_says_that_they_are_released():
    """A person who asks how the servers are is told why the GPUs are missing."""
    said = lines({"time": 1000.0, "gpu_released_until": 1290.0}, [])
    assert said[1].text == "  The GPUs are released for 4 min more, and are not read."
    assert lines({"time": 1000.0}, []) == [said[0], *said[2:]]


async def test_a_read_that_is_in_flight_is_given_up(node):
    """What a driver that hangs answers later counts for nothing, and nobody waits for it."""
    node.gpu.answers["gpu"] = late = asyncio.get_running_loop().create_future()
    await node.ticks(2)
    await node.monitor.release_gpu(20.0)
    await node.ticks(1)
    assert node.reasons("gpu") == {"released"}
    assert late.cancelled()
    node.gpu.answers["gpu"] = gpus(node.clock.now, count=1)
    await node.ticks(1)
    assert node.reasons("gpu") == {"released"}


async def test_over_http_only_where_that_is_allowed():
    """POST with a duration; it says what still holds the driver, by its status too."""
    asked, holders = [], []

    async def release(seconds):
        asked.append(seconds)
        return Released(1_800_000_000.0, tuple(holders))

    async def reload():
        return None

    async def post(query="", *, enabled=True):
        view = a_view()
        app = application(WebConfig(enable_lifecycle=enabled), Exposition(view), lambda: view, Orders(reload, release))
        async with TestClient(TestServer(app)) as client:
            answer = await client.post(f"/-/gpu/release{query}")
            return answer.status, await answer.text()

    status, text = await post(enabled=False)
    assert (status, asked) == (403, [])
    assert "SIGUSR1" in text
    assert (await post("?for=never"))[0] == 400
    assert await post() == (200, "the GPUs are released until 2027-01-15T08:00:00Z\n")
    holders.append("pid 7, which is stuck in gpu 3 nvmlDeviceGetPowerUsage")
    status, text = await post("?for=90s")
    assert (status, asked) == (202, [USUAL_SECONDS, 90.0])
    assert text.splitlines()[1] == "still held by pid 7, which is stuck in gpu 3 nvmlDeviceGetPowerUsage"


def parent_of(pid):
    """Return the parent of a process, 0 where it has gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def uses(pid):
    """Tell whether a process has the driver's library in its memory."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            return "libnvidia-ml" in file.read()
    except OSError:
        return False


def users(pid):
    """Return which of this process and all its descendants use the driver."""
    parents = {int(entry): parent_of(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return list(filter(uses, found))


async def command(exporter, *arguments):
    """Run `stallwatch gpu release` and return its exit code and what it wrote."""
    url = f"http://127.0.0.1:{exporter.port}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stallwatch", "gpu", "release", "--url", url, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def watched(tmp_path, deaf_library):
    """Run an exporter over two GPUs of a compiled stand-in for the driver's library."""
    state = write_state(tmp_path / "state", "gpus 4")
    async with ExporterProcess(environment(deaf_library, state), ["--web.enable-lifecycle"], **FAST) as exporter:
        exporter.state = state
        await exporter.until(lambda scrape: len(scrape.all("gpu_power_watts")) == 4)
        yield exporter


async def test_nothing_of_ours_uses_the_driver_until_it_comes_back(watched):
    """The command ends once no process has the library mapped; metrics, page and check say so; then all is back."""
    exporter = watched
    before = (await exporter.workers())["gpu"]
    assert users(exporter.process.pid) == [before]
    code, out, err = await command(exporter, "--for", "6s")
    assert (code, err) == (0, "")
    assert out.startswith("the GPUs are released until 2")
    assert users(exporter.process.pid) == []
    scrape = await exporter.until(lambda scrape: scrape.value("gpu_released_until_timestamp_seconds"))
    assert 0 < -scrape.age("gpu_released_until_timestamp_seconds") <= 6
    scrape = await exporter.until(lambda scrape: not scrape.all("gpu_power_watts"))
    assert scrape.value("collector_success", collector="gpu") is None
    assert scrape.value("worker_up", worker="gpu") is None
    assert scrape.value("collector_success", collector="process") == 1
    assert "gpu: released (until " in await exporter.shown()
    assert users(exporter.process.pid) == []
    scrape = await exporter.until(lambda scrape: len(scrape.all("gpu_power_watts")) == 4)
    assert scrape.value("gpu_released_until_timestamp_seconds") is None
    assert scrape.value("collector_success", collector="gpu") == 1
    assert set(reasons(scrape, "gpu")) <= {"released"}
    assert (await exporter.workers())["gpu"] != before
    assert "Traceback" not in exporter.log


async def test_a_signal_releases_too_and_another_order_ends_it(watched):
    """SIGUSR1 gives them up for five minutes; a release of a second then ends that."""
    exporter = watched
    for worker in (await exporter.workers()).values():
        os.kill(worker, signal.SIGUSR1)  # `systemctl kill` sends it to all of them
    assert len(await exporter.workers()) == 2
    exporter.process.send_signal(signal.SIGUSR1)
    scrape = await exporter.until(lambda scrape: scrape.value("gpu_released_until_timestamp_seconds"))
    assert 290 < -scrape.age("gpu_released_until_timestamp_seconds") <= 300
    while users(exporter.process.pid):
        await asyncio.sleep(0.05)
    assert (await command(exporter, "--for", "1s"))[0] == 0
    await exporter.until(lambda scrape: len(scrape.all("gpu_power_watts")) == 4)


async def test_a_worker_that_is_stuck_in_the_driver_is_named(watched):
    """It cannot be made to let go: the command says which process it is and in which call, and fails."""
    exporter = watched
    stuck = (await exporter.workers())["gpu"]
    write_state(exporter.state, "gpus 4", STUCK.format(seconds=15))
    await exporter.until(lambda scrape: scrape.value("worker_abandoned", worker="gpu") == 1)
    code, out, err = await command(exporter, "--for", "1m")
    assert (code, err) == (1, "")
    assert out.splitlines()[1:] == [
        f"still held by pid {stuck}, which is stuck in gpu 3 nvmlDeviceGetPowerUsage",
    ]
    assert users(exporter.process.pid) == [stuck]
    scrape = await exporter.scrape()
    assert scrape.value("worker_abandoned", worker="gpu") == 1


async def test_the_command_says_why_it_cannot(capsys):
    """No exporter, one that takes no orders, and a duration that is none."""
    view = a_view()
    async with TestServer(application(WebConfig(), Exposition(view), lambda: view, Orders(None, None))) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert await asyncio.to_thread(release_gpu, url, "5m") == 1
        refused = capsys.readouterr().err
        assert "--web.enable-lifecycle" in refused
        assert "SIGUSR1" in refused
        assert release_gpu(url, "soon") == 2
        assert "--for: expected a duration" in capsys.readouterr().err
    assert release_gpu(url, "5m") == 1
    assert f"no exporter answers at {url}: " in capsys.readouterr().err
