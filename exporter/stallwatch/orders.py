"""What can the running exporter be told from the command line? To let go of the GPUs."""

import sys
from http.client import HTTPException
from urllib.parse import urlencode

from stallwatch.asking import ANYBODY, LOCKED, Client, connection_to, place_of
from stallwatch.config import ConfigError
from stallwatch.release import WITHIN, seconds_of

ANSWER_BYTES = 64 * 1024
DONE, HELD, UNAUTHORIZED = 200, 202, 401


def release_gpu(url: str, duration: str, client: Client = ANYBODY) -> int:
    """Have the exporter at this address release the GPUs, and print its answer.

    The exit code is 0 once nothing of it uses the driver, 1 where a worker still does or it cannot be told, 2 for a
    duration that is none.
    """
    try:
        seconds_of(duration)
        place = place_of(url)
    except ValueError as error:
        return _refused(f"--for: {error}", 2)
    except ConfigError as error:
        return _refused(str(error), 2)
    connection = connection_to(place, WITHIN + 5.0, client)
    try:
        order = f"{place.path.rstrip('/')}/-/gpu/release?{urlencode({'for': duration})}"
        connection.request("POST", order, headers=client.headers)
        answer = connection.getresponse()
        text = answer.read(ANSWER_BYTES).decode(errors="replace")
    except (OSError, HTTPException, ValueError) as error:
        return _refused(f"no exporter answers at {url}: {error}")
    finally:
        connection.close()
    if answer.status == UNAUTHORIZED and not client.authorization:
        return _refused(LOCKED)
    if answer.status not in (DONE, HELD):
        return _refused(text.strip() or f"HTTP {answer.status}")
    sys.stdout.write(text)
    return 1 if answer.status == HELD else 0


def _refused(text: str, code: int = 1) -> int:
    sys.stderr.write(f"stallwatch: {text}\n")
    return code
