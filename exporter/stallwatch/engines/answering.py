"""What does an answer to a health probe prove, and how is an engine asked for one token?"""

import re
from typing import Any

from stallwatch.snapshot import Server

# SGLang looks once a second whether its scheduler has answered, so what comes faster comes from the web process alone.
SCHEDULER_ANSWERS_AFTER = 0.9
SCHEDULER_ASKED_SINCE = {"/health": ((0, 4, 10), 2), "/health_generate": ((0, 4, 3), 4)}


def token_request(server: Server) -> tuple[str, dict[str, Any]]:
    """Return the path and body of a request for one token."""
    if server.engine == "vllm":
        return "/v1/completions", {"model": server.launch.model, "prompt": "1", "max_tokens": 1}
    return "/generate", {"text": "1", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}


def asks_scheduler(server: Server, path: str) -> bool:
    """Say whether a server of this version answers on this path only when its scheduler does."""
    since = SCHEDULER_ASKED_SINCE.get(path)
    if since is None or server.engine != "sglang" or server.launch.worker:
        return False
    version = version_of(server.version)
    return version is None or version >= since


def version_of(text: str) -> tuple[tuple[int, ...], int] | None:
    """Return the numbers of a version and that of its post-release, None where it tells none."""
    match = re.match(r"v?(\d+(?:\.\d+)*)(?:\.post(\d+))?", text)
    if match is None:
        return None
    return tuple(int(part) for part in match[1].split(".")), int(match[2] or 0)
