"""The command: what can be typed, what is answered to a mistake, and with which exit code."""

import os
import subprocess
import sys

import pytest

from stallwatch import __version__
from stallwatch.cli import main


def run(*arguments, **environ):
    """Run `python -m stallwatch` and return its exit code, output and errors."""
    command = [sys.executable, "-m", "stallwatch", *arguments]
    env = {**os.environ, **environ}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=50, check=False)
    return done.returncode, done.stdout, done.stderr


def refused(capsys, *arguments):
    """Run the command in this process and return the one line that it refuses with."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.rstrip("\n")


def test_it_runs_as_a_module():
    """`python -m stallwatch --version` prints name and version."""
    assert run("--version") == (0, f"stallwatch {__version__}\n", "")


def test_the_installed_command_is_the_same():
    """The script that an installation puts on the path runs the same code."""
    script = os.path.join(os.path.dirname(sys.executable), "stallwatch")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == f"stallwatch {__version__}\n"


def test_help_lists_each_command_in_one_line(capsys):
    """`--help` says what it is for and what each command does."""
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert "silently hung" in out
    for command in ("serve", "check", "replay", "evidence", "gpu", "demo", "bundle"):
        assert [line for line in out.splitlines() if line.split()[:1] == [command] and len(line.split()) > 3], out


def test_help_of_serve_groups_the_settings_with_their_defaults(capsys):
    """Settings stand in a group of their own, each with its default and how else it can be given."""
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "usage: stallwatch serve [SETTING ...]" in out
    assert "settings: each is also a key of the file and a variable" in out
    assert "--web.telemetry-path PATH path of the metrics (default /metrics)" in out
    assert "SIGHUP reloads" in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("serve", "--web.listen-adress=:1"), "--web.listen-adress"),
        (("serve", "--web.listen=:1"), "--web.listen"),
        (("sevre",), "sevre"),
        (("serve", "--interval=soon"), "--interval"),
        (("serve", "--log.format=xml"), "--log.format"),
        (("demo", "--port=x"), "--port"),
        (("replay", "spin_deadlock", "--limit", "stale=3m"), "--limit: stale"),
        (("replay",), "replay: name a scenario, a recording or a bundle; --list"),
        (("replay", "/"), "/: is no bundle"),
        (("replay", "/dev/null/recording.jsonl.gz"), "/dev/null/recording.jsonl.gz: cannot be read"),
    ],
)
def test_a_mistake_is_answered_in_one_line(capsys, arguments, named):
    """A wrong flag, value or command is named in one line, and nothing is started."""
    assert named in refused(capsys, *arguments)


def test_shipped_scenarios_are_listed(capsys):
    """One line each, and nothing is played."""
    assert main(["replay", "--list"]) == 0
    assert "\nrecovery " in capsys.readouterr().out


def test_a_wrong_file_is_answered_in_one_line(capsys, tmp_path):
    """A file with an unknown key is refused with its name, the key and what was meant."""
    file = tmp_path / "stallwatch.yml"
    file.write_text("intervall: 1s\n")
    line = refused(capsys, "serve", f"--config.file={file}")
    assert str(file) in line
    assert "intervall: unknown key" in line
    assert "did you mean interval?" in line


def test_a_missing_file_is_answered_in_one_line(capsys, tmp_path):
    """A file that is not there is named."""
    assert str(tmp_path / "none.yml") in refused(capsys, "serve", f"--config.file={tmp_path / 'none.yml'}")


def test_a_wrong_variable_is_answered_in_one_line():
    """A variable of the environment that is no setting is named, as a process of its own answers it."""
    code, out, err = run("serve", STALLWATCH_INTERVALL="1s")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "STALLWATCH_INTERVALL: unknown variable; did you mean STALLWATCH_INTERVAL?" in err


def test_the_configuration_can_be_checked(capsys, tmp_path):
    """`--config.check` reads everything, starts nothing, and says whether it is good."""
    file = tmp_path / "stallwatch.yml"
    file.write_text("interval: 2s\n")
    assert main(["serve", "--config.check", f"--config.file={file}"]) == 0
    assert capsys.readouterr().out == "the configuration is good\n"
    file.write_text("interval: [\n")
    assert str(file) in refused(capsys, "serve", "--config.check", f"--config.file={file}")


def test_a_webhook_that_cannot_be_used_is_said_when_checked(capsys, tmp_path):
    """The exporter would serve all the same, so the configuration is good; what the file holds is not shown."""
    file, url = tmp_path / "stallwatch.yml", tmp_path / "url"
    file.write_text("notify: {webhook_url_file: url}\n")
    for content, wrong in ((None, "no such file or directory"), ("canary", "its line is no http:// or https:// URL")):
        if content:
            url.write_text(content)
        assert main(["serve", "--config.check", f"--config.file={file}"]) == 0
        said = capsys.readouterr()
        assert said.out == "the configuration is good\n"
        assert said.err == f"stallwatch: warning: nobody can be notified: {url}: {wrong}\n"
    url.write_text("https://example.org/canary\n")
    assert main(["serve", "--config.check", f"--config.file={file}"]) == 0
    assert capsys.readouterr().err == ""


def test_checking_loads_no_server():
    """What only serving needs is not imported to check a configuration."""
    code = (
        "import sys; from stallwatch.cli import main; main(['serve', '--config.check'])\n"
        "print([module for module in ('aiohttp', 'prometheus_client') if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "the configuration is good\n[]\n"
