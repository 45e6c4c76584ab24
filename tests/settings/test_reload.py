"""When a changed configuration is taken over, and what a bad one does."""

import asyncio
import errno
import threading

import pytest

from stallwatch.config import Config
from stallwatch.settings.reload import Reloader, digest_of
from stallwatch.settings.sources import ConfigError, load

PATIENCE = 20


def replace(path, content):
    """Write the file so that nobody sees a part of it."""
    other = path.with_suffix(".new")
    other.write_text(content)
    other.replace(path)


class Applied:
    """Keeps what was applied, and lets a test wait for it."""

    def __init__(self):
        self.intervals = []
        self.event = asyncio.Event()

    def __call__(self, config):
        """Take the configuration over."""
        self.intervals.append(config.interval)
        self.event.set()

    async def next(self):
        """Wait for a configuration that was not waited for before."""
        await asyncio.wait_for(self.event.wait(), PATIENCE)
        self.event.clear()
        return self.intervals[-1]


class Attempts:
    """Loads the file, and lets a test wait for an attempt that fails."""

    def __init__(self, path):
        self.path = path
        self.count = 0
        self.failed = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def __call__(self):
        """Load the configuration."""
        self.count += 1
        try:
            return load({"config.file": str(self.path)}, {})
        except ConfigError:
            self.loop.call_soon_threadsafe(self.failed.set)
            raise


@pytest.fixture
async def watched(tmp_path):
    """Yield a function that starts to watch a file, quickly and with real events."""
    reloaders = []

    def start(path, **options):
        applied, attempts = Applied(), Attempts(path)
        reloader = Reloader(path, attempts, applied, **{"debounce": 0.02, "recheck": 600.0, **options})
        reloaders.append(reloader)
        reloader.start()
        return reloader, applied, attempts

    yield start
    for reloader in reloaders:
        await asyncio.wait_for(reloader.stop(), PATIENCE)


@pytest.fixture
def file(tmp_path):
    """Return a configuration file with an interval of 1 s."""
    path = tmp_path / "stallwatch.yml"
    path.write_text("interval: 1s\n")
    return path


async def test_a_plain_write_is_taken_over(watched, file):
    """A file that is written in place is loaded again."""
    reloader, applied, _ = watched(file, now=lambda: 1234.5)
    file.write_text("interval: 2s\n")
    assert await applied.next() == 2.0
    assert (reloader.last_successful, reloader.last_success) == (True, 1234.5)


async def test_a_file_renamed_over_the_old_one_is_taken_over(watched, file):
    """Editors write a new file and rename it, again and again."""
    _, applied, _ = watched(file)
    for seconds in (2.0, 3.0):
        replace(file, f"interval: {seconds}\n")
        assert await applied.next() == seconds


async def test_a_swapped_link_is_taken_over(watched, tmp_path):
    """Kubernetes swaps the link `..data` beside the file, which itself never changes."""

    def revision(name, seconds):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stallwatch.yml").write_text(f"interval: {seconds}\n")
        (tmp_path / "..data_tmp").symlink_to(name)
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

    revision("..1", 1.0)
    path = tmp_path / "stallwatch.yml"
    path.symlink_to("..data/stallwatch.yml")
    _, applied, _ = watched(path)
    for name, seconds in (("..2", 2.0), ("..3", 3.0)):
        revision(name, seconds)
        assert await applied.next() == seconds


async def test_a_directory_that_is_a_link_is_watched(watched, file, tmp_path):
    """The events of the real directory count."""
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    _, applied, _ = watched(link / file.name)
    file.write_text("interval: 2s\n")
    assert await applied.next() == 2.0


async def test_a_bad_file_changes_nothing_until_it_is_good(watched, file, caplog):
    """The old configuration stays in force, and one line says why."""
    reloader, applied, attempts = watched(file)
    replace(file, "interval: soon\n")
    await asyncio.wait_for(attempts.failed.wait(), PATIENCE)
    message = await reloader.request()
    assert message is not None
    assert "interval: expected a duration" in message
    assert (applied.intervals, reloader.last_successful) == ([], False)
    assert [record.error for record in caplog.records if record.levelname == "ERROR"] == [message]
    replace(file, "interval: 2s\n")
    assert await applied.next() == 2.0
    assert await reloader.request() is None
    assert reloader.last_successful


async def test_a_deleted_file_is_a_failure_until_it_is_back(watched, file):
    """The same content is news again after the file was gone."""
    reloader, applied, attempts = watched(file)
    content = file.read_text()
    file.unlink()
    await asyncio.wait_for(attempts.failed.wait(), PATIENCE)
    assert applied.intervals == []
    replace(file, content)
    assert await applied.next() == 1.0
    assert await reloader.request() is None


async def test_a_touched_file_is_not_loaded(file):
    """A look at a file with the same content makes no attempt, a look at another content makes one."""
    applied, attempts = Applied(), Attempts(file)
    reloader = Reloader(file, attempts, applied)
    file.touch()
    await reloader._look(file)
    assert attempts.count == 0
    replace(file, "interval: 2s\n")
    await reloader._look(file)
    await reloader._look(file)
    assert (attempts.count, applied.intervals) == (1, [2.0])


async def test_a_change_before_the_watch_is_seen(file):
    """What changes between the making and the start of the reloader brings no event, and is loaded all the same."""
    applied = Applied()
    reloader = Reloader(file, Attempts(file), applied, watch=lambda path, stir: lambda: None, debounce=0.0)
    replace(file, "interval: 2s\n")
    reloader.start()
    assert await applied.next() == 2.0
    await reloader.stop()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
async def test_without_inotify_the_file_is_looked_at_now_and_then(watched, file, number, caplog):
    """A node that is out of inotify instances or watches still reloads."""

    def none_left(path, stir):
        raise OSError(number, "inotify limit reached")

    _, applied, _ = watched(file, watch=none_left, recheck_unwatched=0.02)
    replace(file, "interval: 2s\n")
    assert await applied.next() == 2.0
    replace(file, "interval: 3s\n")
    assert await applied.next() == 3.0
    assert [record.reason for record in caplog.records if record.levelname == "WARNING"] == ["inotify limit reached"]


async def test_without_any_event_the_file_is_looked_at_now_and_then(watched, file):
    """A network mount brings no events."""
    _, applied, _ = watched(file, watch=lambda path, stir: lambda: None, recheck=0.02)
    for seconds in (2.0, 3.0):
        replace(file, f"interval: {seconds}\n")
        assert await applied.next() == seconds


async def test_a_request_loads_what_did_not_change(file):
    """Whoever asks for a reload gets one."""
    applied = Applied()
    reloader = Reloader(file, Attempts(file), applied)
    assert await reloader.request() is None
    assert applied.intervals == [1.0]


async def test_a_request_works_without_a_file():
    """Without a file there is nothing to watch, and a request is answered."""
    applied = Applied()
    reloader = Reloader(None, Config, applied)
    reloader.start()
    assert await reloader.request() is None
    await reloader.stop()
    assert applied.intervals == [1.0]


async def test_a_configuration_that_cannot_be_applied_is_refused(file):
    """What the rest of the exporter refuses is a failure like a bad file."""

    def refuse(config):
        raise ConfigError("web.listen_address: cannot change while running")

    reloader = Reloader(file, Attempts(file), refuse)
    assert await reloader.request() == "web.listen_address: cannot change while running"
    assert not reloader.last_successful


async def test_a_bug_in_loading_does_not_end_the_watch(file):
    """An exception that nobody foresaw is a failed reload."""
    reloader = Reloader(file, lambda: {}["key"], Applied())
    assert await reloader.request() == "KeyError: 'key'"


async def test_a_read_that_hangs_hangs_nothing_else(watched, file):
    """A dead mount costs a failed reload; the end does not wait for it, and no second read joins it."""
    released = threading.Event()
    applied = Applied()

    def hang():
        released.wait(PATIENCE)
        return Config()

    reloader = Reloader(file, hang, applied, deadline=0.05)
    reloader.start()
    assert await reloader.request() == f"{file}: not read within 0.05 s"
    assert await reloader.request() == f"{file}: still being read since the last try"
    await asyncio.wait_for(reloader.stop(), PATIENCE)
    assert (applied.intervals, reloader.last_successful) == ([], False)
    released.set()


async def test_a_watch_that_hangs_hangs_nothing_else(watched, file):
    """Watching the directory of a dead mount holds nothing up; one that stands after the end is taken down again."""
    released, taken_down = threading.Event(), asyncio.Event()

    def hang(_path, _stir):
        released.wait(PATIENCE)
        return taken_down.set

    reloader, applied, _ = watched(file, watch=hang, recheck=0.02)
    file.write_text("interval: 2s\n")
    assert await applied.next() == 2.0
    await asyncio.wait_for(reloader.stop(), PATIENCE)
    assert not taken_down.is_set()
    released.set()
    await asyncio.wait_for(taken_down.wait(), PATIENCE)


async def test_stopping_leaves_no_thread(watched, file):
    """The threads of the watch end with it."""
    before = set(threading.enumerate())
    reloader, applied, _ = watched(file)
    replace(file, "interval: 2s\n")
    await applied.next()
    await reloader.stop()
    while [thread for thread in set(threading.enumerate()) - before if thread.name != "configuration"]:
        await asyncio.sleep(0.01)


async def test_files_that_the_file_names_are_watched_too(watched, file, tmp_path):
    """A certificate that is replaced in another directory is news, also one that is named since the last load only."""
    (tmp_path / "keys").mkdir()
    named = {tmp_path / "keys" / name: "" for name in ("one", "two")}
    for path in named:
        path.write_text("old")
    seen = {}

    def note(paths):
        seen.clear()
        seen.update({path: digest_of(path) for path in paths})

    one, two = named
    note([one])
    reloader, applied, _ = watched(file, named=lambda: dict(seen))
    one.write_text("new")
    assert await applied.next() == 1.0
    note([one, two])
    await reloader.request()
    await applied.next()
    reloader._watch_all(file)
    assert set(reloader._watches) == {file, one, two}
    replace(two, "new")
    await applied.next()


async def test_a_named_file_that_did_not_change_is_no_news(file, tmp_path):
    """A look compares what is there with what the load saw, and does not load again for nothing."""
    key = tmp_path / "key"
    key.write_text("old")
    applied = Applied()
    reloader = Reloader(file, Attempts(file), applied, named=lambda: {key: digest_of_old})
    digest_of_old = digest_of(key)
    await reloader._look(file)
    assert applied.intervals == []
    key.unlink()
    await reloader._look(file)
    assert applied.intervals == [1.0]
