"""An exporter that is started by other commands, which take its rights away or bound what it may use."""

import os
import shutil
import subprocess
import sys

from exporter_process import ExporterProcess

NOBODY = 65534


def python_of_everybody():
    """Return an interpreter of this version that another user may run, with its environment; None where there is none.

    Our own may lie in a home directory, or be a link to one.
    """
    environ = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}", shutil.which(version)):
        command = [python, "-c", "import stallwatch.serve"]
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
        try:
            subprocess.run(command, env={**os.environ, **environ}, check=True, capture_output=True, cwd="/", **user)
        except (OSError, TypeError, subprocess.CalledProcessError):
            continue
        return python, environ
    return None


class PrefixedExporter(ExporterProcess):
    """The exporter behind other commands, each of which executes the next."""

    def __init__(self, folder, *prefix, python=sys.executable, environ=None, flags=(), **settings):
        script = folder / f"exporter-{os.urandom(4).hex()}"
        words = " ".join(f"'{word}'" for word in (*prefix, python))
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        script.chmod(0o755)
        super().__init__(environ, flags, python=str(script), **settings)
