"""aiohttp as an exporter loads it: no CAs, no library for lists, and an environment that is as it was."""

import importlib
import json
import subprocess
import sys

import pytest

from stallwatch.lightly import SWITCHES, Lazily, lightly

LOAD = """
import json, os, sys
from stallwatch.lightly import lightly
before = dict(os.environ)
with lightly():
    from aiohttp import connector
contexts = [value for value in vars(connector).values() if isinstance(value, connector.ssl.SSLContext)]
print(json.dumps({
    "same": dict(os.environ) == before,
    "contexts": len(contexts),
    "cas": sum(context.cert_store_stats()["x509_ca"] for context in contexts),
    "compiled": "frozenlist._frozenlist" in sys.modules,
}))
"""


def test_what_nothing_needs_is_not_loaded():
    """Whoever verifies a certificate makes a context of their own; aiohttp is there and works."""
    done = subprocess.run([sys.executable, "-c", LOAD], check=True, capture_output=True, text=True, timeout=30)
    found = json.loads(done.stdout)
    assert found.pop("contexts") > 0
    assert found == {"same": True, "cas": 0, "compiled": False}


def test_the_environment_is_given_back_also_after_a_fault():
    """What somebody has set stands again, and what nobody has set is gone."""
    environ = {"SSL_CERT_FILE": "/etc/our-cas.pem", "PATH": "/bin"}
    seen = {}

    def fail():
        seen.update(environ)
        raise ImportError

    with pytest.raises(ImportError), lightly(environ):
        fail()
    assert seen == {**SWITCHES, "PATH": "/bin"}
    assert environ == {"SSL_CERT_FILE": "/etc/our-cas.pem", "PATH": "/bin"}


def test_a_module_that_is_seldom_used_is_loaded_once_it_is():
    """Until then it takes no memory, nor does what it imports; then it is the very module."""
    code = (
        "import sys; from stallwatch.lightly import Lazily\n"
        "with Lazily(frozenset({'tempfile'})): import tempfile\n"
        "early = 'random' in sys.modules\n"
        "name = tempfile.gettempdir()\n"
        "print(early, 'random' in sys.modules, bool(name), tempfile is sys.modules['tempfile'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ["False", "True", "True", "True"]


def test_what_could_not_be_loaded_is_tried_again(tmp_path, monkeypatch):
    """One failure, as for want of a descriptor, costs that use; a module that is half there would cost all others."""
    count = tmp_path / "count"
    (tmp_path / "seldom_there.py").write_text(
        "from pathlib import Path\n"
        f"tries = Path({str(count)!r})\n"
        "tries.write_text(tries.read_text() + 'x' if tries.exists() else 'x')\n"
        "if len(tries.read_text()) < 3:\n"
        "    raise OSError(24, 'Too many open files')\n"
        "answer = 42\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Lazily(frozenset({"seldom_there"})):
        seldom_there = importlib.import_module("seldom_there")
    assert not count.exists()
    for _ in range(2):
        with pytest.raises(OSError, match="Too many open files"):
            _ = seldom_there.answer
    assert seldom_there.answer == 42
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = seldom_there.no_such_name
    assert count.read_text() == "xxx"
    assert sys.modules.pop("seldom_there") is seldom_there


def test_what_a_command_does_not_use_is_not_loaded():
    """Argparse brings shutil, and that would bring two compressors."""
    code = (
        "import sys; from stallwatch.cli import main\n"
        "code = main(['serve', '--config.check'])\n"
        "print(code, 'bz2' in sys.modules, *({'_bz2', '_lzma'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "0 True"


def test_only_what_is_imported_meanwhile_is_loaded_late():
    """Before and after it all is found as ever, also where something went wrong meanwhile."""
    before, seen = list(sys.meta_path), []

    def fail():
        seen.extend(sys.meta_path)
        raise ImportError

    lazily = Lazily(frozenset({"glob"}))
    with pytest.raises(ImportError), lazily:
        fail()
    assert seen == [lazily, *before]
    assert sys.meta_path == before


def test_what_is_not_there_is_missed_as_ever():
    """A name that no file stands for is none of ours to find."""
    assert Lazily(frozenset({"no_such_module"})).find_spec("no_such_module") is None
    assert Lazily(frozenset({"glob"})).find_spec("tempfile") is None
