"""aiohttp as an exporter loads it: no CAs, no library for lists, and an environment that is as it was."""

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
