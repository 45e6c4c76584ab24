"""TLS: real handshakes as the web file says, and what cannot be done is said."""

import os
import ssl
import warnings

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from doors import opened, policy, tls, trusting
from stallwatch.config import ConfigError
from stallwatch.gate.tls import TlsLoader, has_allowed_name
from stallwatch.gate.webfile import Pem, Tls


@pytest.fixture(scope="module")
def authority():
    """Return a CA."""
    return trustme.CA()


@pytest.fixture(scope="module")
def server(authority):
    """Return a certificate for the server."""
    return authority.issue_cert("127.0.0.1")


def verified(authority, client_auth, **more):
    """Return settings that ask for the certificates of this authority."""
    return {"client_ca": Pem(text=authority.cert_pem.bytes().decode()), "client_auth": client_auth, **more}


async def served(door, context):
    """Say whether a client gets an answer; what keeps it out differs by when the certificate is looked at."""
    try:
        return (await door.get(context=context))[0] == 200
    except (ssl.SSLError, ConnectionError):
        return False


async def test_a_client_that_knows_the_authority_is_served(authority, server):
    """The usual case; who does not trust it goes away, and plain HTTP gets no answer."""
    async with opened(policy(tls(server))) as door:
        assert await served(door, trusting(authority))
        assert not await served(door, trusting(trustme.CA()))
        assert await door.say(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") == b""


@pytest.mark.parametrize(
    ("client_auth", "outcomes"),
    [
        ("NoClientCert", {"none": True, "ours": True, "foreign": True}),
        ("VerifyClientCertIfGiven", {"none": True, "ours": True, "foreign": False}),
        ("RequireAndVerifyClientCert", {"none": False, "ours": True, "foreign": False}),
    ],
)
async def test_who_has_to_show_a_certificate(authority, server, client_auth, outcomes):
    """Each policy lets in whom it names, and nobody else."""
    clients = {"none": None, "ours": authority.issue_cert("a"), "foreign": trustme.CA().issue_cert("a")}
    more = {} if client_auth == "NoClientCert" else verified(authority, client_auth)
    async with opened(policy(tls(server, **more))) as door:
        assert {name: await served(door, trusting(authority, one)) for name, one in clients.items()} == outcomes


async def test_an_authority_with_a_comment_of_any_language_is_one(authority, server):
    """Only the certificates in a file count."""
    commented = Pem(text=f"# Büro\n{authority.cert_pem.bytes().decode()}")
    more = verified(authority, "RequireAndVerifyClientCert") | {"client_ca": commented}
    async with opened(policy(tls(server, **more))) as door:
        assert await served(door, trusting(authority, authority.issue_cert("a")))


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        (["prometheus.example.org"], True),
        (["other.example.org", "10.0.0.1"], True),
        (["ops@example.org"], True),
        (["2001:DB8::1"], True),
        (["other.example.org"], False),
        (["*.example.org"], False),
    ],
)
async def test_only_certificates_with_a_name_that_is_allowed(authority, server, names, fits):
    """DNS names, addresses and e-mail addresses count, each as a whole."""
    more = verified(authority, "RequireAndVerifyClientCert", allowed_sans=("prometheus.example.org", "ops@example.org"))
    more["allowed_sans"] += ("10.0.0.1", "2001:db8:0::1")
    async with opened(policy(tls(server, **more))) as door:
        assert await served(door, trusting(authority, authority.issue_cert(*names))) is fits


def test_a_certificate_without_names_fits_nothing():
    """Neither does none at all."""
    assert not has_allowed_name(None, ("a",))
    assert not has_allowed_name({}, ("a",))
    assert has_allowed_name({"subjectAltName": (("URI", "spiffe://a/b"),)}, ("spiffe://a/b",))


@pytest.mark.parametrize(("versions", "chosen"), [(("TLS12", "TLS12"), "TLSv1.2"), (("TLS13", "TLS13"), "TLSv1.3")])
async def test_versions(authority, server, versions, chosen):
    """Only those in the range are spoken."""
    async with opened(policy(tls(server, versions=versions))) as door:
        _, writer = await door.connect(trusting(authority))
        assert writer.get_extra_info("ssl_object").version() == chosen
        writer.close()
        other = trusting(authority)
        wanted = ssl.TLSVersion.TLSv1_3 if chosen == "TLSv1.2" else ssl.TLSVersion.TLSv1_2
        other.minimum_version = other.maximum_version = wanted
        assert not await served(door, other)


async def test_old_versions_are_not_spoken(authority, server):
    """Not even to a client that has nothing better."""
    old = trusting(authority)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with opened(policy(tls(server))) as door:
        assert not await served(door, old)


async def test_cipher_suites_and_whose_order_counts(authority):
    """The suites of the list are offered and no others; the server's order counts unless it is to follow the client."""
    server = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
    ours = (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_GCM_SHA256",
    )
    client = trusting(authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES256-GCM-SHA384")
    chosen = {}
    for prefer in (True, False):
        async with opened(policy(tls(server, cipher_suites=ours, prefer_server_cipher_suites=prefer))) as door:
            _, writer = await door.connect(client)
            chosen[prefer] = writer.get_extra_info("cipher")[0]
            writer.close()
    assert chosen == {True: "ECDHE-RSA-AES256-GCM-SHA384", False: "ECDHE-RSA-CHACHA20-POLY1305"}


async def test_a_curve(authority, server):
    """A client that has another one is not served."""
    async with opened(policy(tls(server, curves=("CurveP384",)))) as door:
        client = trusting(authority)
        client.set_ecdh_curve("prime256v1")
        assert not await served(door, client)
        client.set_ecdh_curve("secp384r1")
        assert await served(door, client)


def refusal(settings):
    """Return why these settings are refused."""
    with pytest.raises(ConfigError) as caught:
        TlsLoader("web.yml").context(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_done_is_said(authority, server):
    """Nothing that the file asks for is left out silently."""
    assert "cipher_suites: unknown suite 'RC4'; allowed: TLS_ECDHE_" in refusal(tls(server, cipher_suites=("RC4",)))
    only_13 = tls(server, cipher_suites=("TLS_AES_128_GCM_SHA256",))
    assert "names no suite of TLS 1.2; set min_version: TLS13" in refusal(only_13)
    assert "curve_preferences: unknown curve 'P1'" in refusal(tls(server, curves=("P1",)))
    if not hasattr(ssl.SSLContext, "set_groups"):
        assert "one curve only" in refusal(tls(server, curves=("X25519", "CurveP256")))


def test_certificates_and_keys_that_are_no_good(authority, server, tmp_path):
    """Each says which of them it is; an encrypted key asks nobody for its password."""
    good = tls(server)
    other = tls(authority.issue_cert("b"))
    assert "cert: the key is not that of the certificate" in refusal(Tls(good.certificate, other.key))
    assert "cert: no PEM certificate is in it" in refusal(Tls(Pem(text="x"), good.key))
    assert "key: no PEM key is in it" in refusal(Tls(good.certificate, Pem(text="x")))
    broken = good.certificate.text.replace("MII", "AAA", 1)
    assert "certificate or key is no good" in refusal(Tls(Pem(text=broken), good.key))
    ca = {"client_auth": "RequireAndVerifyClientCert", "client_ca": Pem(text="x")}
    assert "client_ca: no PEM certificate is in it" in refusal(tls(server, **ca))
    key = serialization.load_pem_private_key(good.key.text.encode(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    assert "key: is encrypted" in refusal(Tls(good.certificate, Pem(text=locked.decode())))


def test_files_that_cannot_be_read(server, tmp_path):
    """The file is named, a pipe is not waited for, and what was tried is known, so that a change is seen."""
    good = tls(server)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "big").write_bytes(b"x" * (1 << 20) + b"x")
    for name, reason in {
        "absent": "No such file or directory",
        "pipe": "not a regular file",
        "big": "larger than 1 MiB",
    }.items():
        assert f"cert_file: {tmp_path / name}: cannot be read: {reason}" in refusal(Tls(Pem(tmp_path / name), good.key))
    loader = TlsLoader("web.yml")
    (tmp_path / "cert").write_text(good.certificate.text)
    with pytest.raises(ConfigError):
        loader.context(Tls(Pem(tmp_path / "cert"), Pem(tmp_path / "absent")))
    assert set(loader.seen) == {tmp_path / "cert", tmp_path / "absent"}
