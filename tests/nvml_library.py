"""How do tests get an NVML on a machine without GPUs?

`build` compiles the stand-in for the library that `pynvml` loads; `write_state` says what it, or the one in Python,
plays. The statements are listed in exporter/stallwatch/simulation/nvml.py.
"""

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml" / "fake_nvml.c"
# A call into the driver takes no notice of SIGTERM.
DEAF = """
#include <errno.h>
#include <time.h>
static int deaf(struct timespec *pause) { while (nanosleep(pause, pause) == -1 && errno == EINTR) {} return 0; }
#define nanosleep(pause, rest) deaf(pause)
"""


def build(directory: Path, header: str = "") -> Path:
    """Compile libnvidia-ml.so.1 into the directory, once, and return the directory for LD_LIBRARY_PATH.

    `header` is C that is put before it, to change how it behaves.
    """
    library, included = directory / "libnvidia-ml.so.1", directory / "before.h"
    if not library.exists():
        included.write_text(header)
        options = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
        subprocess.run(["gcc", *options, "-include", str(included), "-o", str(library), str(SOURCE)], check=True)
    return directory


def write_state(path: Path, *statements: str) -> Path:
    """Replace the state file at once, so that no reader sees half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(statements) + "\n", encoding="utf-8")
    fresh.replace(path)
    return path


def environment(library: Path, state: Path) -> dict[str, str]:
    """Return the environment of a process whose `pynvml` is to load the library in that directory."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "STALLWATCH_FAKE_NVML": str(state)}
