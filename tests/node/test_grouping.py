"""Which processes make up one server."""

import json

import pytest

from discovery_node import MODULE, Node, roles
from procfs_tree import OUR_NETWORK
from stallwatch.discovery import target

SPAWN = ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(5)", "--multiprocessing-fork")


@pytest.fixture
def node(tmp_path):
    """Return discovery over a node without servers."""
    node = Node(tmp_path)
    node.tree.add(1, "init", ppid=0)
    return node


def test_a_launcher_alone_is_a_server_that_starts(node):
    """Its spawned children are ranks to come, until they have their titles or all ranks are there."""
    node.tree.add(100, *MODULE, "--tp", "2")
    [server] = node.look().values()
    assert roles(server) == {"launcher": "launcher"}
    for pid in (101, 102, 103):
        node.tree.add(pid, *SPAWN, ppid=100, start=node.now)
    [server] = node.look().values()
    assert roles(server) == {"launcher": "launcher", **{f"spawning#{pid}": "spawning" for pid in (101, 102, 103)}}
    node.tree.title(101, "sglang::scheduler_TP0")
    [server] = node.look().values()
    assert list(roles(server).values()) == ["launcher", "scheduler", "spawning", "spawning"]
    node.tree.title(102, "sglang::scheduler_TP1")
    [server] = node.look().values()
    assert roles(server)["spawning"] == "other"


def test_what_a_rank_spawns_is_no_rank(node):
    """Pools of workers look the same."""
    node.server(100, "--tp", "4")
    node.tree.add(120, *SPAWN, ppid=101)
    [server] = node.look().values()
    assert "spawning" not in roles(server)


def test_two_servers_on_one_node_stay_apart(node):
    """Each rank belongs to the launcher above it, also behind a data parallel controller."""
    node.server(100, "--port", "31000")
    node.tree.add(200, *MODULE, "--dp", "2", "--port", "32000")
    node.tree.titled(201, "sglang::data_parallel_controller", ppid=200)
    node.tree.titled(202, "sglang::scheduler_DP0", ppid=201)
    node.tree.titled(203, "sglang::scheduler_DP1", ppid=201)
    found = node.look()
    assert [p.pid for p in found["sglang:31000"].processes] == [100, 101, 102]
    assert sorted(p.pid for p in found["sglang:32000"].processes) == [200, 201, 202, 203]
    assert found["sglang:32000"].ranks == ("DP0", "DP1")


def test_an_engine_inside_another_program_is_a_server_without_port(node):
    """Its ranks belong together by the program above them."""
    node.tree.add(100, "python3", "train.py")
    node.tree.titled(101, "sglang::scheduler_TP0", ppid=100)
    node.tree.titled(102, "sglang::scheduler_TP1", ppid=100)
    node.tree.titled(103, "sglang::detokenizer", ppid=100)
    [server] = node.look().values()
    assert server.name == "sglang:embedded"
    assert [p.pid for p in server.processes] == [101, 102, 103]
    assert (server.launch.port, server.expected_schedulers, server.address) == (None, None, None)
    assert server.address_absence.startswith("no_port: ")


def test_two_engines_inside_other_programs_are_two_servers(node):
    """Also the controllers between them and their ranks are seen through."""
    for pid in (100, 200):
        node.tree.add(pid, "python3", "train.py")
        node.tree.titled(pid + 1, "sglang::data_parallel_controller", ppid=pid)
        node.tree.titled(pid + 2, "sglang::scheduler_DP0", ppid=pid + 1)
    assert set(node.look()) == {"sglang:embedded#102", "sglang:embedded#202"}


def test_what_is_left_without_a_rank_is_no_server(node):
    """A detokenizer alone serves nobody, nor does a router."""
    node.tree.titled(101, "sglang::detokenizer")
    node.tree.titled(102, "sglang::router")
    assert node.look() == {}


def test_ranks_whose_launcher_is_gone_remain_one_server_under_its_name(node):
    """They have been given to init, each on its own."""
    node.server(100, "--tp", "2", "--port", "31000")
    node.look()
    node.tree.remove(100)
    for pid in (101, 102):
        node.tree.change(pid, ppid=1)
    [server] = node.look().values()
    assert (server.name, server.launch.tp_size, server.expected_schedulers) == ("sglang:31000", 2, 2)
    assert roles(server) == {"scheduler_TP0": "scheduler", "scheduler_TP1": "scheduler"}


def test_a_new_worker_that_is_told_of_them_sees_the_same_server(node):
    """What was found travels by the exporter."""
    node.server(100, "--tp", "2", "--port", "31000")
    told = [target(server) for server in node.look().values()]
    node.tree.remove(100)
    for pid in (101, 102):
        node.tree.change(pid, ppid=1)
    node.restart()
    [server] = node.look(targets=json.loads(json.dumps(told))).values()
    assert (server.name, server.expected_schedulers, server.ranks) == ("sglang:31000", 2, ("TP0", "TP1"))


def test_ranks_of_a_launcher_that_was_never_seen_belong_together_by_session(node):
    """Two servers lost their launchers before the first look."""
    for pid, session in ((101, 100), (102, 100), (201, 200)):
        node.tree.titled(pid, f"sglang::scheduler_TP{pid % 100}", ppid=1, session=session)
    found = node.look()
    assert {name: [p.pid for p in server.processes] for name, server in found.items()} == {
        "sglang:embedded#101": [101, 102],
        "sglang:embedded#201": [201],
    }


def test_a_zombie_rank_stays_in_its_server(node):
    """Its state is told by who reads processes."""
    node.server(100)
    node.look()
    node.tree.die(102)
    [server] = node.look().values()
    assert server.ranks == ("TP0", "TP1")


def test_a_server_of_which_nothing_runs_is_gone(node):
    """Zombies that nobody collects are no server."""
    node.server(100)
    node.look()
    for pid in (100, 101, 102):
        node.tree.die(pid)
    assert node.look() == {}


def test_a_pid_used_again_is_another_process(node):
    """The start of a process belongs to who it is."""
    node.server(100)
    node.look()
    node.server(100, start=5000.0)
    after = node.look()["sglang:30000"]
    assert [p.start_ticks for p in after.processes] == [500_000] * 3


def test_a_fork_of_a_titled_process_is_not_counted_twice(node):
    """Until it runs another program it looks the same."""
    node.server(100)
    node.tree.add(130, *MODULE, ppid=100)
    node.tree.titled(131, "sglang::scheduler_TP0", ppid=101)
    [server] = node.look().values()
    assert [p.pid for p in server.processes] == [100, 101, 102]


def test_a_wrapper_that_stays_is_no_server_of_its_own(node):
    """A launcher above a launcher with other words only runs it."""
    node.tree.add(90, "numactl", "-N", "0", *MODULE)
    node.server(100)
    node.tree.change(100, ppid=90)
    [server] = node.look().values()
    assert server.processes[0].pid == 100


def test_a_starting_server_behind_a_wrapper_is_one_server(node):
    """Before there are ranks to tell who owns them."""
    node.tree.add(90, "numactl", "-N", "0", *MODULE)
    node.tree.add(100, *MODULE, ppid=90)
    [server] = node.look().values()
    assert [p.pid for p in server.processes] == [100]


def test_servers_below_a_router_have_its_flags_and_their_own_ports(node):
    """The ports are known once they listen."""
    node.tree.add(90, "python3", "-m", "sglang_router.launch_server", "--tp", "2", "--dp-size", "2", "--port", "30000")
    for pid in (100, 200):
        node.tree.titled(pid, "sglang::server", ppid=90, pgrp=pid)
        node.tree.titled(pid + 1, "sglang::scheduler_DP0_TP0", ppid=pid)
    assert set(node.look()) == {"sglang:embedded#100", "sglang:embedded#200"}
    node.tree.network(OUR_NETWORK, [("127.0.0.1", 31000, 11), ("127.0.0.1", 31001, 12)])
    node.tree.open(100, 3, "socket:[11]")
    node.tree.open(200, 3, "socket:[12]")
    found = node.look()
    assert set(found) == {"sglang:31000", "sglang:31001"}
    assert (found["sglang:31000"].launch.tp_size, found["sglang:31000"].expected_schedulers) == (2, 2)
    assert found["sglang:31000"].listening


def test_a_titled_main_process_is_a_server(node):
    """SGLang 0.5.2 that was started before us: its flags are lost, its port shows."""
    node.tree.titled(100, "sglang::http_server/tokenizer_manager")
    node.tree.titled(101, "sglang::scheduler", ppid=100)
    node.tree.open(100, 3, "socket:[11]")
    node.tree.network(OUR_NETWORK, [("127.0.0.1", 31000, 11)])
    server = node.look()["sglang:31000"]
    assert (server.expected_schedulers, server.ranks) == (None, ("TP0",))


def test_vllm_servers_are_found(node):
    """Workers are its schedulers; without any, the engine core is."""
    node.tree.add(100, "vllm", "serve", "m", "-tp", "2")
    node.tree.titled(101, "VLLM::EngineCore", ppid=100)
    node.tree.titled(102, "VLLM::Worker_TP0", ppid=101)
    node.tree.titled(103, "VLLM::Worker_TP1", ppid=101)
    node.tree.add(200, "vllm", "serve", "m", "--port", "8001")
    node.tree.titled(201, "VLLM::EngineCore", ppid=200)
    node.tree.titled(202, "VLLM::APIServer", ppid=200)
    found = node.look()
    assert roles(found["vllm:8000"]) == {
        "launcher": "launcher",
        "Worker_TP0": "scheduler",
        "Worker_TP1": "scheduler",
        "EngineCore": "engine_core",
    }
    assert roles(found["vllm:8001"]) == {"launcher": "launcher", "EngineCore": "scheduler", "http_server": "other"}


def test_replicas_of_vllm_are_told_apart_by_what_started_their_workers(node):
    """Several API servers and a coordinator stand beside them."""
    node.tree.add(100, "vllm", "serve", "m", "-tp", "2", "-dp", "2", "--api-server-count", "2")
    for pid, title in ((101, "APIServer_0"), (102, "APIServer_1"), (103, "DPCoordinator")):
        node.tree.titled(pid, f"VLLM::{title}", ppid=100)
    for replica in (0, 1):
        core = 110 + 10 * replica
        node.tree.titled(core, f"VLLM::EngineCore_DP{replica}", ppid=100)
        node.tree.titled(core + 1, "VLLM::Worker_TP0", ppid=core)
        node.tree.titled(core + 2, "VLLM::Worker_TP1", ppid=core)
    [server] = node.look().values()
    assert server.ranks == ("DP0_TP0", "DP0_TP1", "DP1_TP0", "DP1_TP1")
    others = {name: role for name, role in roles(server).items() if not name.startswith("Worker")}
    assert others == {
        "launcher": "launcher",
        "APIServer_0": "other",
        "APIServer_1": "other",
        "DPCoordinator": "other",
        "EngineCore_DP0": "engine_core",
        "EngineCore_DP1": "engine_core",
    }
    assert server.expected_schedulers == 4


def test_a_main_process_of_vllm_that_titles_itself_keeps_its_flags(node):
    """Some versions do so seconds after the start."""
    node.tree.add(100, "vllm", "serve", "m", "-tp", "2", "--port", "8001")
    node.look()
    node.tree.title(100, "VLLM::APIServer_0")
    [server] = node.look().values()
    assert (server.name, server.launch.tp_size, roles(server)) == ("vllm:8001", 2, {"launcher": "launcher"})


def test_workers_of_vllm_without_titles_are_ranks_to_come(node):
    """An engine core that is spawned, and the workers that it spawns."""
    node.tree.add(100, "vllm", "serve", "m", "-tp", "2")
    node.tree.add(101, *SPAWN, ppid=100)
    node.tree.add(102, *SPAWN, ppid=101)
    node.tree.add(103, *SPAWN, ppid=101)
    [server] = node.look().values()
    assert sorted(roles(server).values()) == ["launcher", "spawning", "spawning", "spawning"]
    node.tree.title(101, "VLLM::EngineCore")
    node.tree.title(102, "VLLM::Worker_TP0")
    node.tree.title(103, "VLLM::Worker_TP1")
    [server] = node.look().values()
    assert server.ranks == ("TP0", "TP1")


def test_a_node_of_vllm_without_an_engine_core_has_workers(node):
    """The launcher of a second node starts them itself, and has no port."""
    node.tree.add(100, "vllm", "serve", "m", "-tp", "4", "--nnodes", "2", "--node-rank", "1", "--headless")
    for pid, rank in ((101, "TP2"), (102, "TP3")):
        node.tree.titled(pid, f"VLLM::Worker_{rank}", ppid=100)
    [server] = node.look().values()
    assert (server.name, server.ranks, server.expected_schedulers) == ("vllm:embedded", ("TP2", "TP3"), 2)
    assert server.launch.worker


def test_vllm_with_a_port_for_each_replica_is_a_server_for_each(node):
    """They have the flags of the launcher above them, and are known by the ports that they listen on."""
    split = "--data-parallel-multi-port-external-lb"
    node.tree.add(90, "vllm", "serve", "m", "-tp", "2", "-dp", "2", "-dpl", "2", split)
    for replica in (0, 1):
        front = 100 * (replica + 1)
        node.tree.titled(front, f"VLLM::ExternalLBRank_{replica}", ppid=90, pgrp=front)
        node.tree.titled(front + 1, f"VLLM::EngineCore_DP{replica}", ppid=front)
        node.tree.titled(front + 2, "VLLM::Worker_TP0", ppid=front + 1)
        node.tree.titled(front + 3, "VLLM::Worker_TP1", ppid=front + 1)
        node.tree.open(front, 3, f"socket:[{replica + 11}]")
    node.tree.network(OUR_NETWORK, [("0.0.0.0", 8000, 11), ("0.0.0.0", 8001, 12)])
    found = node.look()
    assert set(found) == {"vllm:8000", "vllm:8001"}
    assert found["vllm:8001"].ranks == ("DP1_TP0", "DP1_TP1")
    assert found["vllm:8001"].expected_schedulers == 2
    assert roles(found["vllm:8001"])["launcher"] == "launcher"
