"""What can the running exporter be told from the command line? To let go of the GPUs."""

import sys
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException

from stallwatch.release import WITHIN, seconds_of

ANSWER_BYTES = 64 * 1024
HELD = 202


def release_gpu(url: str, duration: str) -> int:
    """Have the exporter at this address release the GPUs, and print its answer.

    The exit code is 0 once nothing of it uses the driver, 1 where a worker still does or it cannot be told, 2 for a
    duration that is none.
    """
    try:
        seconds_of(duration)
    except ValueError as error:
        return _refused(f"--for: {error}", 2)
    order = urllib.request.Request(f"{url}/-/gpu/release?{urllib.parse.urlencode({'for': duration})}", method="POST")  # noqa: S310 given by the user
    try:
        with urllib.request.urlopen(order, timeout=WITHIN + 5.0) as answer:  # noqa: S310 the same
            sys.stdout.write(answer.read(ANSWER_BYTES).decode(errors="replace"))
            return 1 if answer.status == HELD else 0
    except urllib.error.HTTPError as error:
        return _refused(error.read(ANSWER_BYTES).decode(errors="replace").strip() or str(error))
    except (OSError, HTTPException, ValueError) as error:
        return _refused(f"no exporter answers at {url}: {getattr(error, 'reason', error)}")


def _refused(text: str, code: int = 1) -> int:
    sys.stderr.write(f"stallwatch: {text}\n")
    return code
