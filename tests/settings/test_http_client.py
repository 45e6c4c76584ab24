"""The file of the HTTP client: what it gives, what is refused, and real exporters behind TLS and passwords."""

import asyncio
import base64

import pytest
import trustme

from doors import trusting
from gate.test_live import Secured, hashed, replace, write_certificate
from stallwatch.cli import main
from stallwatch.config import ConfigError
from stallwatch.settings.http_client import read_client

BASIC = "basic_auth: {username: ann, password: right}\n"


def client_of(folder, text):
    """Return what such a file gives."""
    file = folder / "http.yml"
    file.write_text(text)
    return read_client(file)


def refusal(folder, text):
    """Return why such a file is refused, without its name."""
    with pytest.raises(ConfigError) as refused:
        client_of(folder, text)
    return str(refused.value).removeprefix(f"{folder / 'http.yml'}: ")


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("", ""),
        (BASIC, f"Basic {base64.b64encode(b'ann:right').decode()}"),
        ("basic_auth: {username: ann, password_file: secret}\n", f"Basic {base64.b64encode(b'ann:s3:cret').decode()}"),
        ("authorization: {credentials: token}\n", "Bearer token"),
        ("authorization: {type: Token, credentials_file: secret}\n", "Token s3:cret"),
    ],
)
def test_as_whom(tmp_path, text, header):
    """A password or token stands in the file or in another beside it, and is shown nowhere."""
    (tmp_path / "secret").write_text("s3:cret\n")
    client = client_of(tmp_path, text)
    assert client.authorization == header
    assert client.headers == ({"Authorization": header} if header else {})
    assert header == "" or header not in repr(client)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[]", "expected a mapping, got a list"),
        ("oauth2: {}", "oauth2: unknown key; allowed: basic_auth, authorization, tls_config"),
        (
            BASIC + "authorization: {credentials: a}",
            "authorization: stands beside basic_auth; one of the two is enough",
        ),
        ("basic_auth: {password: a}", "basic_auth.username: expected a name without a colon"),
        ("basic_auth: {username: 'a:b', password: a}", "basic_auth.username: expected a name without a colon"),
        ("basic_auth: {username: no, password: a}", "basic_auth.username: expected text, got"),
        ("basic_auth: {username: a}", "basic_auth: expected one of password and password_file"),
        ("basic_auth: {username: a, password: b, password_file: c}", "expected one of password and password_file"),
        ("basic_auth: {username: a, password_file: absent}", "{0}/absent: cannot be read: No such file or directory"),
        ("authorization: {credentials_file: latin}", "authorization.credentials_file: {0}/latin: not UTF-8"),
        ('authorization: {credentials: "a\\r\\nX: b"}', "authorization: expected printable ASCII in one line"),
        ("tls_config: {min_version: TLS13}", "tls_config.min_version: unknown key"),
        ("tls_config: {cert_file: a}", "tls_config: cert_file and key_file need each other"),
        ("tls_config: {ca_file: absent}", "tls_config.ca_file: cannot be read: No such file or directory"),
        ("tls_config: {ca_file: latin}", "tls_config.ca_file: {0}/latin: no good: "),
        ("tls_config: {cert_file: latin, key_file: latin}", "tls_config.cert_file: {0}/latin: no good: "),
        ("tls_config: {insecure_skip_verify: maybe}", "expected true or false"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, wrong):
    """In one line that names file and key, and shows no secret."""
    (tmp_path / "latin").write_bytes("schl\u00fcssel".encode("latin-1"))
    said = refusal(tmp_path, text)
    assert wrong.format(tmp_path) in said
    assert "\n" not in said


def test_both_commands_say_what_is_wrong(tmp_path, capsys):
    """Each with its own exit code."""
    file = tmp_path / "http.yml"
    assert main(["check", f"--http.config.file={file}"]) == 3
    assert main(["gpu", "release", f"--http.config.file={file}"]) == 2
    assert capsys.readouterr().err == f"stallwatch: {file}: cannot be read: No such file or directory\n" * 2


def test_whoever_names_a_client_means_an_exporter(tmp_path, capsys, monkeypatch):
    """A look does not pass for the answer of one that is not there."""
    monkeypatch.setattr("stallwatch.check.USUAL_URL", "http://127.0.0.1:9")
    (tmp_path / "http.yml").write_text(BASIC)
    assert main(["check", f"--http.config.file={tmp_path / 'http.yml'}"]) == 3
    assert "no exporter answers at http://127.0.0.1:9 (--look looks itself" in capsys.readouterr().err


@pytest.fixture
def authority(tmp_path):
    """Have a CA, a certificate of the exporter and one of a client, and a password file."""
    made = trustme.CA()
    (tmp_path / "tls").mkdir()
    write_certificate(tmp_path / "tls", made)
    ours = made.issue_cert("operator@example.org")
    ours.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "password").write_text("right\n")
    return made


def exporter_behind(folder, authority):
    """Return an exporter that wants a password and a certificate of this authority."""
    tls = "{cert_file: tls/server.crt, key_file: tls/server.key, client_ca_file: ca.pem, "
    tls += "client_auth_type: RequireAndVerifyClientCert}"
    replace(folder / "web.yml", f"tls_server_config: {tls}\nbasic_auth_users: {{ann: {hashed('right')}}}\n")
    context = trusting(authority)
    context.load_cert_chain(folder / "client.pem")
    exporter = Secured(folder / "web.yml", context, "right")
    exporter._flags.append("--web.enable-lifecycle")
    return exporter


async def run(exporter, folder, text, *command):
    """Run a command with such a file, and return its exit code."""
    (folder / "http.yml").write_text(text)
    flags = (f"--http.config.file={folder / 'http.yml'}", f"--url=https://127.0.0.1:{exporter.port}")
    return await asyncio.to_thread(main, [*command, *flags])


async def test_an_exporter_behind_a_certificate_and_a_password_is_asked(tmp_path, authority, capsys):
    """By both commands; a wrong password, no certificate, a CA or a name that is another are told apart."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    user = "basic_auth: {username: ann, password_file: password}\n"
    ours = "cert_file: client.pem, key_file: client.pem"
    good = f"{user}tls_config: {{ca_file: ca.pem, {ours}}}\n"
    async with exporter_behind(tmp_path, authority) as exporter:
        assert await run(exporter, tmp_path, good, "check", "--json") in {0, 1, 2, 3}
        assert '"servers": ' in capsys.readouterr().out
        assert await run(exporter, tmp_path, good, "gpu", "release", "--for=1s") == 0
        assert "the GPUs are released until" in capsys.readouterr().out
        named = good.replace("ca.pem,", "ca.pem, server_name: 127.0.0.1,")
        assert await run(exporter, tmp_path, named, "gpu", "release", "--for=1s") == 0
        for text, told in {
            good.replace("password_file: password", "password: wrong"): "HTTP 401, wrong password",
            f"tls_config: {{{ours}}}": "HTTP 401, it wants a password: give --http.config.file",
            good.replace("ca.pem", "other.pem"): "TLS: CERTIFICATE_VERIFY_FAILED",
            named.replace("127.0.0.1", "example.org"): "TLS: CERTIFICATE_VERIFY_FAILED",
        }.items():
            assert await run(exporter, tmp_path, text, "check") == 3
            assert told in capsys.readouterr().err
            assert await run(exporter, tmp_path, text, "gpu", "release") == 1
        assert await run(exporter, tmp_path, user, "check") == 3
