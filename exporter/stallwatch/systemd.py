"""What is the service manager told?

systemd's protocol for `Type=notify` and `WatchdogSec`: datagrams to the socket that `$NOTIFY_SOCKET` names. The
watchdog is fed by what it is to watch, one datagram per look at the node: a collector that is stuck does not keep a
look from being made, an event loop that is blocked does. Without the variables nothing is sent.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping

logger = logging.getLogger("stallwatch")

LOOKS = 3
"""So many looks may be missed before the watchdog bites, whatever the unit says."""


class Notifier:
    """Tells the service manager how the exporter fares; never raises and never waits."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._watchdog = _watchdog_of(environ)
        self._within = self._watchdog
        self._has_failed = False

    def ready(self) -> None:
        """Say that it serves, also after a reload."""
        self._send("READY=1")

    def pace(self, interval: float) -> None:
        """Say how often it looks, in seconds; where the unit expects to hear more often, that is changed."""
        within = max(self._watchdog, LOOKS * interval) if self._watchdog else 0.0
        if within != self._within:
            self._within = within
            self._send(f"WATCHDOG_USEC={round(within * 1e6)}")

    def alive(self) -> None:
        """Say that a look at the node was made."""
        if self._watchdog:
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Say that the configuration is being read again; `ready` ends that."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say that it ends."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender:
                sender.sendto(text.encode(), self._address)
        except (OSError, ValueError) as error:
            if not self._has_failed:
                logger.warning("the service manager cannot be told", extra={"error": str(error)})
            self._has_failed = True


def _watchdog_of(environ: Mapping[str, str]) -> float:
    """Return within how many seconds the watchdog wants to hear of this process, 0 where there is none."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    told = environ.get("WATCHDOG_USEC", "")
    return int(told) / 1e6 if told.isdecimal() else 0.0
