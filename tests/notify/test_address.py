"""The file with the URL: what it may hold, and that no error shows any of it."""

import os

import pytest
from yarl import URL

from stallwatch.notify.address import LARGEST_FILE, AddressError, proxy_of, read_url

SECRET = "canary"
NO_URL = "its line is no http:// or https:// URL"


def refusal(path):
    """Return what is said of this file, which must be wrong."""
    with pytest.raises(AddressError) as caught:
        read_url(path)
    assert caught.value.__cause__ is None
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.org/services/T0/B0/canary%2Fx?key=a%20b&c",
        "http://127.0.0.1:9095/",
        "http://[::1]:9095/x",
        "https://user:canary@example.org",
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "  \n\n"])
def test_one_line_is_the_url_as_it_stands_there(tmp_path, url, end):
    """However an editor ended the line; nothing of it is written in another way."""
    path = tmp_path / "url"
    path.write_text(url + end)
    assert str(read_url(path)) == str(URL(url, encoded=True))
    assert url.startswith(str(read_url(path)).removesuffix("/"))


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("", "it is empty"),
        ("\n \n", "it is empty"),
        ("https://a/canary\nhttps://b/canary\n", "it has more than one line"),
        ("x" * (LARGEST_FILE + 1), f"it is larger than {LARGEST_FILE} bytes"),
        *(
            (text, NO_URL)
            for text in (
                "canary",
                "hooks.example.org/canary",
                "ftp://example.org/canary",
                "file:///etc/canary",
                "https:///canary",
                "https://example.org:canary/",
                "https://example.org:99999/canary",
                "https://example.org/canary canary",
                "https://example.org/canary\x1b[0m",
                "https://example.org/canary\x00",
                "https://münchen.example/canary",
                "https://[::1/canary",
                "url: https://example.org/canary",
                '"https://example.org/canary"',
            )
        ),
    ],
)
def test_anything_else_is_refused_without_being_shown(tmp_path, content, wrong):
    """What is wrong is said in words that quote nothing."""
    path = tmp_path / "url"
    path.write_text(content)
    assert refusal(path) == wrong


def test_only_a_plain_file_is_read(tmp_path):
    """A directory, a pipe that nobody writes to and a file that is not there are said at once; a link is followed."""
    (tmp_path / "url").write_text("http://localhost:1/")
    (tmp_path / "link").symlink_to("url")
    os.mkfifo(tmp_path / "pipe")
    assert str(read_url(tmp_path / "link")) == "http://localhost:1/"
    assert refusal(tmp_path / "pipe") == refusal(tmp_path) == "it is no regular file"
    assert refusal(tmp_path / "none") == "no such file or directory"
    before = len(os.listdir("/proc/self/fd"))
    refusal(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://hooks.example.org/x", "http://proxy:3128"),
        ("http://hooks.example.org/x", "http://user:pw@plain:8080"),
        ("https://inside.corp/x", None),
        ("https://a.inside.corp/x", None),
        ("http://127.0.0.1:9095/", None),
        ("http://localhost:9095/", None),
        ("http://[::1]:9095/", None),
    ],
)
def test_the_proxy_of_the_environment_is_taken(monkeypatch, url, proxy):
    """Unless it is told not to, or the receiver is on this machine; a proxy without a scheme speaks HTTP."""
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    monkeypatch.setenv("http_proxy", "http://user:pw@plain:8080")
    monkeypatch.setenv("NO_PROXY", "inside.corp")
    found = proxy_of(URL(url))
    assert found == (None if proxy is None else URL(proxy))
