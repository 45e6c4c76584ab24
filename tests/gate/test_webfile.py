"""Web file: what is taken over of the toolkit's format, and how what is wrong is named."""

import subprocess

import pytest
import trustme

from stallwatch.config import ConfigError
from stallwatch.gate.tls import CIPHERS_12, CIPHERS_13, CURVES
from stallwatch.gate.webfile import Pem, Rate, Tls, WebFile, read_web_file

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
CERT = "cert_file: c.pem, key_file: k.pem"


def write(folder, text):
    """Write the file and return its path."""
    path = folder / "web.yml"
    path.write_text(text)
    return path


def test_everything_that_the_format_has(tmp_path):
    """All keys at once; file names are relative to the file."""
    path = write(
        tmp_path,
        f"""
tls_server_config:
  cert_file: server.crt
  key_file: keys/server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: /etc/ca.pem
  client_allowed_sans: [prometheus.example.org, 10.0.0.1]
  min_version: TLS13
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [X25519]
http_server_config:
  http2: true
  headers: {{X-Frame-Options: deny, Strict-Transport-Security: max-age=1, Content-Security-Policy: ""}}
basic_auth_users:
  alice: {HASH}
  7: {HASH}
rate_limit: {{interval: 1s, burst: 20}}
""",
    )
    assert read_web_file(path) == WebFile(
        Tls(
            Pem(tmp_path / "server.crt"),
            Pem(tmp_path / "keys/server.key"),
            Pem(file=type(tmp_path)("/etc/ca.pem")),
            "RequireAndVerifyClientCert",
            ("prometheus.example.org", "10.0.0.1"),
            ("TLS13", "TLS13"),
            ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",),
            prefer_server_cipher_suites=False,
            curves=("X25519",),
        ),
        {"X-Frame-Options": "deny", "Strict-Transport-Security": "max-age=1", "Content-Security-Policy": ""},
        {"alice": HASH, "7": HASH},
        Rate(1.0, 20),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "tls_server_config: {}\nbasic_auth_users:\n", "rate_limit: {}\n"])
def test_a_file_that_says_nothing_changes_nothing(tmp_path, text):
    """As with the toolkit, that is plain HTTP for everybody."""
    assert read_web_file(write(tmp_path, text)) == WebFile()


def test_certificates_may_stand_in_the_file(tmp_path):
    """They are kept out of what is printed."""
    tls = read_web_file(
        write(tmp_path, "tls_server_config: {cert: CERTIFICATE, key: SECRET, client_ca_file: null}")
    ).tls
    assert (tls.certificate.text, tls.key.text) == ("CERTIFICATE", "SECRET")
    assert "SECRET" not in repr(tls)


WRONG = {
    "tls_config: {}": "tls_config: unknown key; allowed: tls_server_config, http_server_config, basic",
    "[1]": "expected a mapping, got a list",
    "tls_server_config: {certfile: a}": "tls_server_config.certfile: unknown key; allowed: cert, ",
    "tls_server_config: {key_file: a}": "tls_server_config: missing one of cert and cert_file",
    "tls_server_config: {cert_file: a}": "tls_server_config: missing one of key and key_file",
    "tls_server_config: {min_version: TLS12}": "tls_server_config: missing one of cert and cert_file",
    "tls_server_config: {cert: a, cert_file: a, key: b}": "tls_server_config.cert: stands beside cert_file",
    f"tls_server_config: {{{CERT}, client_auth_type: Maybe}}": "client_auth_type: expected one of NoClientCert, ",
    f"tls_server_config: {{{CERT}, client_auth_type: RequestClientCert}}": "use VerifyClientCertIfGiven or No",
    f"tls_server_config: {{{CERT}, client_auth_type: RequireAnyClientCert}}": "use RequireAndVerifyClientCert",
    f"tls_server_config: {{{CERT}, client_ca_file: x}}": "client_auth_type: a client CA is given, which NoClientCert",
    f"tls_server_config: {{{CERT}, client_allowed_sans: [a]}}": "client_allowed_sans: needs client_auth_type: Require",
    f"tls_server_config: {{{CERT}, client_allowed_sans: []}}": "client_allowed_sans: is empty",
    f"tls_server_config: {{{CERT}, min_version: TLS10}}": "min_version: expected one of TLS12, TLS13; got 'TLS10'",
    f"tls_server_config: {{{CERT}, min_version: TLS13, max_version: TLS12}}": "max_version: TLS12 is below min_version",
    f"tls_server_config: {{{CERT}, prefer_server_cipher_suites: 1}}": "cipher_suites: expected true or false, got 1",
    f"tls_server_config: {{{CERT}, cipher_suites: all}}": "cipher_suites: expected a list, got text",
    "http_server_config: {http3: true}": "http_server_config.http3: unknown key",
    "http_server_config: {http2: 2}": "http_server_config.http2: expected true or false, got 2",
    "http_server_config: {headers: {Server: x}}": "http_server_config.headers.Server: unknown key; allowed: Content-",
    "http_server_config: {headers: {X-Frame-Options: never}}": "X-Frame-Options: expected one of deny, sameorigin; got",
    'http_server_config: {headers: {X-XSS-Protection: "0\\r\\nX: y"}}': "X-XSS-Protection: expected printable ASCII",
    "basic_auth_users: {alice: hunter2}": "basic_auth_users.alice: expected a bcrypt hash",
    "basic_auth_users: {alice: null}": "basic_auth_users.alice: expected a bcrypt hash",
    f'basic_auth_users: {{alice: "{HASH.replace("$10", "$19")}"}}': "alice: a bcrypt hash of a cost over 18",
    f'basic_auth_users: {{"a:b": "{HASH}"}}': "a name with a colon cannot be sent",
    "rate_limit: {interval: 1s}": "rate_limit.burst: expected a whole number from 1",
    "rate_limit: {interval: soon}": "rate_limit.interval: expected a duration",
    "rate_limit: {every: 1s}": "rate_limit.every: unknown key; allowed: interval, burst",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named_in_one_line(tmp_path, text):
    """The line names the file and the key, and no secret."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_web_file(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert WRONG[text] in line
    assert "\n" not in line
    assert "hunter2" not in line
    assert HASH[7:] not in line


def test_the_file_is_one_that_other_exporters_take(tmp_path):
    """promtool, which has the toolkit's own code, finds nothing wrong with what is right here."""
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    text = f"""
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: server.crt
  min_version: TLS12
  cipher_suites: [{", ".join(CIPHERS_12)}, {", ".join(CIPHERS_13)}]
  curve_preferences: [{", ".join(CURVES)}]
http_server_config: {{http2: false, headers: {{X-Frame-Options: sameorigin, X-Content-Type-Options: nosniff}}}}
basic_auth_users: {{alice: {HASH}}}
"""
    path = write(tmp_path, text)
    assert read_web_file(path).tls.cipher_suites == (*CIPHERS_12, *CIPHERS_13)
    done = subprocess.run(["promtool", "check", "web-config", path], capture_output=True, text=True, check=False)
    assert (done.returncode, "SUCCESS" in done.stdout + done.stderr) == (0, True), done.stderr
