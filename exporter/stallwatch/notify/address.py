"""To which URL is posted? The one line of a file that holds it, since whoever knows the URL can post there.

No error here and nothing that is logged shows any of it.
"""

from pathlib import Path
from urllib.request import getproxies_environment, proxy_bypass

from yarl import URL

from stallwatch.plainfile import read_plain

LARGEST_FILE = 4096


class AddressError(Exception):
    """The file cannot be used; the text says why, and shows nothing of it."""


def read_url(file: Path) -> URL:
    """Return the URL that stands in the file; raises AddressError."""
    try:
        return _url(_content(file))
    except OSError as error:
        raise AddressError((error.strerror or type(error).__name__).lower()) from None


def proxy_of(url: URL) -> URL | None:
    """Return the proxy that the environment names for this URL ($HTTPS_PROXY, $HTTP_PROXY, $NO_PROXY), or None.

    What is on this machine is always reached directly, as Prometheus' own programs do it.
    """
    host = url.host or ""
    if host in {"localhost", "::1"} or host.startswith("127."):
        return None
    proxies = getproxies_environment()
    found = proxies.get(url.scheme)
    if not found or proxy_bypass(host, proxies):
        return None
    return URL(found if "://" in found else f"http://{found}")


def _content(file: Path) -> bytes:
    try:
        content = read_plain(file, LARGEST_FILE + 1)
    except (ValueError, IsADirectoryError):
        raise AddressError("it is no regular file") from None
    if len(content) > LARGEST_FILE:
        raise AddressError(f"it is larger than {LARGEST_FILE} bytes")
    return content


def _url(content: bytes) -> URL:
    lines = content.strip().splitlines()
    if len(lines) != 1:
        raise AddressError("it has more than one line" if lines else "it is empty")
    wrong = AddressError("its line is no http:// or https:// URL")
    try:
        text = lines[0].decode("ascii")
        url = URL(text, encoded=True)
        usable = url.scheme in {"http", "https"} and url.host and url.port
    except ValueError:
        raise wrong from None
    if not usable or not text.isprintable() or " " in text:
        raise wrong
    return url
