"""The roster: what is configured wins over what was found, and no two servers share a name."""

from dataclasses import replace

from readings import a_server
from stallwatch.engines.meeting import group_of
from stallwatch.roster import Roster, roster
from stallwatch.sections import ServerConfig, TlsConfig
from stallwatch.snapshot import Launch


def test_what_is_found_stays_as_it_is_without_configuration():
    """With no configuration the servers that were found are watched."""
    found = (a_server(), a_server(name="sglang:30001"))
    assert roster(found, ()) == found


def test_a_configured_server_takes_the_processes_of_the_one_on_its_port():
    """The port ties both together; name, log and expected ranks are those of the configuration."""
    entry = ServerConfig(name="kimi", port=30000, log="/data/kimi.log", expected_schedulers=4)
    (server,) = roster((a_server(log_absence="terminal: x"),), (entry,))
    assert (server.name, server.log_path, server.log_absence, server.expected_schedulers) == (
        "kimi",
        "/data/kimi.log",
        "",
        4,
    )
    assert len(server.processes) == 9


def test_without_a_port_the_name_ties_them_together():
    """An embedded engine has no port: it is configured by the name it was found under."""
    (server,) = roster((a_server(name="sglang:embedded"),), (ServerConfig(name="sglang:embedded", log="/l"),))
    assert server.log_path == "/l"


def test_a_configured_server_that_is_not_seen_is_watched_all_the_same():
    """Its port and log can be read before any process of it is found."""
    (server,) = roster((), (ServerConfig(name="kimi", port=8000),))
    assert (server.name, server.address, server.launch.port, server.processes) == ("kimi", "127.0.0.1", 8000, ())
    assert server.log_absence.startswith("no_process")


def test_a_configured_host_is_an_address_of_our_own_network_namespace():
    """As where the port of a container is published, which asks for no right to enter its namespace."""
    found = a_server(address="127.0.0.1", network="net:[5]")
    (server,) = roster((found,), (ServerConfig(name="kimi", port=30000, host="127.0.0.1"),))
    assert (server.address, server.network) == ("127.0.0.1", "")
    (server,) = roster((found,), (ServerConfig(name="kimi", port=30000),))
    assert server.network == "net:[5]"


def test_host_and_tls_of_the_configuration_are_used():
    """A configured address is trusted; TLS makes the probe https."""
    entry = ServerConfig(name="kimi", port=8000, host="10.0.0.7", tls=TlsConfig())
    (server,) = roster((), (entry,))
    assert (server.address, server.launch.tls) == ("10.0.0.7", True)
    (local,) = roster((), (ServerConfig(name="kimi", port=8000, host="localhost"),))
    assert local.address == "127.0.0.1"


def test_a_found_server_gives_way_to_a_configured_name():
    """Two servers never share a name: the one that was only found gets its pid added."""
    names = [server.name for server in roster((a_server(),), (ServerConfig(name="sglang:30000", port=31000),))]
    assert names == ["sglang:30000", "sglang:30000#100"]


def test_configured_gpus_and_engine_count():
    """GPUs named by hand become the server's; an entry for another engine does not match."""
    entry = ServerConfig(name="v", engine="vllm", port=30000, gpus=(2, 3))
    servers = roster((a_server(),), (entry,))
    assert [server.engine for server in servers] == ["vllm", "sglang"]
    assert [place.index for place in servers[0].gpus] == [2, 3]


def test_a_group_can_be_named():
    """Where nodes were given different names of one machine, the configuration says what they have in common."""
    launch = Launch(port=30000, nnodes=2, node_rank=1, dist_init_addr="node-0:5000")
    (server,) = roster((a_server(launch=launch),), (ServerConfig(name="kimi", port=30000, group="kimi"),))
    assert group_of(server.launch) == "kimi"


def test_a_life_lasts_while_one_process_of_before_is_there():
    """A launcher that dies does not make its ranks a new server; a start under the same name does."""
    lives = Roster()

    def incarnation(*pids):
        server = a_server()
        processes = tuple(replace(server.processes[1], pid=pid) for pid in pids)
        return lives.of((replace(server, processes=processes),), ())[0].incarnation

    first = incarnation(1, 2, 3)
    assert incarnation(2, 3, 4) == first
    assert incarnation(4) == first
    assert incarnation(7, 8) != first


def test_a_pid_that_is_used_again_is_another_life():
    """The start of a process belongs to who it is."""
    lives = Roster()
    server = a_server(ranks=1)
    first = lives.of((server,), ())[0].incarnation
    again = replace(server, processes=tuple(replace(process, start_ticks=99) for process in server.processes))
    assert lives.of((again,), ())[0].incarnation != first


def test_a_configured_server_begins_to_live_when_its_processes_are_seen():
    """Before it is seen its life is one, and its first process begins another."""
    lives, entry = Roster(), ServerConfig(name="kimi", port=30000)
    unseen = [lives.of((), (entry,))[0].incarnation for _ in range(2)]
    assert unseen == ["unseen", "unseen"]
    assert lives.of((a_server(),), (entry,))[0].incarnation == "100.1"


def pod(pid, name):
    """Return a server of one process under the name that discovery gives it."""
    server = a_server(name=name, ranks=1)
    return replace(server, processes=(replace(server.processes[1], pid=pid),))


def test_a_name_sticks_to_its_server_when_another_one_comes_to_the_same_port():
    """Discovery tells two servers on one port apart by their containers; the one that was there keeps its name."""
    names = Roster()

    def seen(*pods):
        return [server.name for server in names.of([pod(*one) for one in pods], ())]

    assert seen((1, "vllm:8000")) == ["vllm:8000"]
    assert seen((1, "vllm:8000@aaa"), (2, "vllm:8000@bbb")) == ["vllm:8000", "vllm:8000@bbb"]
    assert seen((2, "vllm:8000")) == ["vllm:8000@bbb"]
    assert seen((3, "vllm:8000")) == ["vllm:8000"]


def test_a_server_whose_port_is_learnt_later_gets_its_name_then():
    """Without flags the port is known once it listens."""
    names = Roster()
    assert names.of([pod(1, "sglang:embedded")], ())[0].name == "sglang:embedded"
    assert names.of([pod(1, "sglang:30000")], ())[0].name == "sglang:30000"
