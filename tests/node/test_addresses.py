"""Where a server's port may be probed."""

import pytest

from procfs_tree import OUR_NETWORK, ProcTree
from stallwatch.node.addresses import Address, Addresses
from stallwatch.node.procfs import Procfs


class CountedFds(Procfs):
    """A /proc that says how often the descriptors of a process were listed."""

    __slots__ = ("listed",)

    def fds(self, pid):
        """List and count."""
        self.listed.append(pid)
        return Procfs.fds(self, pid)


class Denied(Procfs):
    """A /proc in which we may not see who has what open."""

    __slots__ = ()

    def fds(self, pid):
        """Refuse."""
        raise PermissionError(pid)


@pytest.fixture
def tree(tmp_path):
    """Return a tree with a launcher 7, its rank 8 and a stranger 9."""
    tree = ProcTree(tmp_path)
    for pid in (7, 8, 9):
        tree.add(pid, "x", fds={3: f"socket:[{pid}00]", 4: "/a"})
    return tree


def find(tree, host="127.0.0.1", port=30000, pids=(7, 8)):
    """Ask a fresh finder."""
    return Addresses().find(Procfs(str(tree.root)), pids, host, port)


@pytest.mark.parametrize(
    ("bound", "literal"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("10.0.0.5", "10.0.0.5"),
        ("::", "::1"),
        ("fd00::5", "fd00::5"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.169.254", "some.host.name"])
def test_a_server_is_probed_where_it_listens(tree, bound, literal, host):
    """Whatever its flags say, and never by a name."""
    tree.network(OUR_NETWORK, [(bound, 30000, 700)])
    assert find(tree, host) == Address(literal, listening=True)


def test_the_socket_may_be_that_of_any_of_its_processes(tree):
    """A web worker listens, not the main process."""
    tree.network(OUR_NETWORK, [("127.0.0.1", 30000, 800)])
    assert find(tree).listening


def test_ipv4_goes_first_where_it_listens_on_both(tree):
    """One of them is enough."""
    tree.network(OUR_NETWORK, [("::", 30000, 700), ("0.0.0.0", 30000, 800)])
    assert find(tree).literal == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "literal"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "::1"),
        ("[::1]", "::1"),
        ("127.0.0.2", "127.0.0.2"),
        ("10.0.0.5", "10.0.0.5"),
        ("fd00::5", "fd00::5"),
    ],
)
def test_while_nobody_listens_its_own_address_shows_the_refusal(tree, host, literal):
    """A connection that is refused is what a starting server answers."""
    assert find(tree, host) == Address(literal)


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "10.0.0.6", "some.host", "127.0.0.1.evil.com", "127.evil", "2001:db8::1"]
)
def test_a_foreign_host_is_never_called(tree, host):
    """Anyone may title a process and give it any flag."""
    found = find(tree, host)
    assert (found.literal, found.absence.partition(":")[0]) == (None, "foreign_address")


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
def test_the_port_of_another_process_is_not_probed(tree, bound):
    """Its answers would be taken for this server's."""
    tree.network(OUR_NETWORK, [(bound, 30000, 900)])
    found = find(tree)
    assert (found.literal, found.listening, found.absence.partition(":")[0]) == (None, False, "port_taken")


def test_another_address_or_port_is_not_in_the_way(tree):
    """A proxy may listen on the outer address."""
    tree.network(OUR_NETWORK, [("10.0.0.5", 30000, 900), ("127.0.0.1", 30001, 900)])
    assert find(tree) == Address("127.0.0.1")


def test_another_network_namespace_is_looked_into_and_named(tree):
    """Its loopback is not ours, and neither are those who listen there."""
    tree.network("net:[5]", [("0.0.0.0", 30000, 700)])
    tree.network(OUR_NETWORK, [("127.0.0.1", 30000, 900)])
    tree.add(7, "x", fds={3: "socket:[700]"}, network="net:[5]")
    assert find(tree) == Address("127.0.0.1", listening=True, network="net:[5]")
    tree.network("net:[5]")
    assert find(tree) == Address("127.0.0.1", network="net:[5]")


def test_an_address_of_another_network_namespace_is_one_of_its_own(tree):
    """Ours is a foreign one there."""
    tree.add(7, "x", network="net:[5]")
    tree.network("net:[5]")
    (tree.root / "networks" / "net:[5]" / "fib_trie").write_text("")
    assert find(tree, host="10.0.0.5").absence.partition(":")[0] == "foreign_address"
    assert find(tree, host="fd00::5") == Address("fd00::5", network="net:[5]")


def test_a_server_without_a_port_is_told(tree):
    """An Engine inside another program has none."""
    assert find(tree, port=None).absence.partition(":")[0] == "no_port"


def test_a_server_whose_processes_all_went_is_in_no_namespace_of_ours(tree):
    """There is nothing to ask."""
    assert find(tree, pids=()).literal is None


def test_not_being_allowed_to_look_is_told(tree):
    """Whether it listens cannot be known then."""
    tree.network(OUR_NETWORK, [("127.0.0.1", 30000, 700)])
    found = Addresses().find(Denied(str(tree.root)), (7, 8), "127.0.0.1", 30000)
    assert found.absence.partition(":")[0] == "permission_denied"


def test_descriptors_are_listed_once_per_socket(tree):
    """Eight ranks have hundreds of them."""
    tree.network(OUR_NETWORK, [("127.0.0.1", 30000, 800)])
    procfs, addresses = CountedFds(str(tree.root)), Addresses()
    object.__setattr__(procfs, "listed", [])
    for _ in range(3):
        assert addresses.find(procfs, (7, 8), "127.0.0.1", 30000).listening
        assert addresses.find(procfs, (9,), "127.0.0.1", 30000).absence.startswith("port_taken")
    assert procfs.listed == [7, 8, 9]


def test_a_socket_that_was_closed_is_not_taken_for_open(tree):
    """The number of a socket may come again, in another process."""
    tree.network(OUR_NETWORK, [("127.0.0.1", 30000, 700)])
    procfs, addresses = Procfs(str(tree.root)), Addresses()
    assert addresses.find(procfs, (7, 8), "127.0.0.1", 30000).listening
    tree.open(7, 3, "/b")
    assert not addresses.find(procfs, (7, 8), "127.0.0.1", 30000).listening


def test_a_port_is_guessed_only_where_there_is_one(tree):
    """A main process that lost its flags may also listen for its ranks."""
    procfs, addresses = Procfs(str(tree.root)), Addresses()
    assert addresses.port_of(procfs, 7) is None
    tree.network(OUR_NETWORK, [("127.0.0.1", 31000, 700), ("127.0.0.1", 5000, 900)])
    assert addresses.port_of(procfs, 7) == 31000
    tree.open(7, 5, "socket:[701]")
    tree.network(OUR_NETWORK, [("127.0.0.1", 31000, 700), ("127.0.0.1", 31001, 701)])
    assert addresses.port_of(procfs, 7) is None
