"""A server of several nodes, each in network and process namespaces of its own, and what is paged when one hangs.

Takes FOLDER, LIBRARY and NODES, and runs in namespaces itself, so that nothing is left when it ends. Prints a JSON
object: `pages`, each call of the pager, and `firing`, the alerts that fire in Prometheus, muted or not.
"""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stallwatch.simulation.pager import Pager, programs

HERE = Path(__file__).parent
WORKS_SECONDS = 20
"""How long the server works before a rank of its last node hangs."""
WATCHED_SECONDS = 25
"""How long, after the page, no second one may come."""
PAGED_WITHIN = 90


class GroupPager(Pager):
    """The shipped rules and routes over several nodes, at the pace of a demo."""

    def __init__(self, directory, addresses):
        super().__init__(directory, 0)
        self._addresses = addresses

    def _prometheus(self):
        config = super()._prometheus()
        targets = [f"{address}:19847" for address in self._addresses]
        config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
        return config

    def _alertmanager(self, webhook_port):
        config = super()._alertmanager(webhook_port)
        for route in config["route"]["routes"]:
            if route.get("group_wait") == "1s":
                route["group_wait"] = "3s"  # twice an evaluation, as shipped
        return config


@contextmanager
def node(rank, nodes, folder, library):
    """Start one node, connected to the others by a cable of its own, and yield its address."""
    address = f"10.77.0.{rank + 1}"
    told = {"address": address, "rank": rank, "nodes": nodes, "culprit": nodes - 1, "seconds": WORKS_SECONDS}
    told |= {"folder": str(folder / f"node-{rank}"), "library": str(library)}
    apart = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    play = [sys.executable, str(HERE / "node_of_group.py"), json.dumps(told)]
    with subprocess.Popen([*apart, *play], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            os.sched_yield()
        network(
            f"link add cable{rank} type veth peer name eth0 netns {process.pid}",
            f"link set cable{rank} master switch up",
        )
        process.stdin.write(b"go\n")
        process.stdin.flush()
        yield address


def network(*lines):
    """Run these commands of ip."""
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)


def firing(port):
    """Return the alerts that fire in Prometheus, whether they are muted or not."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/alerts", timeout=10) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    return [alert["labels"] for alert in alerts if alert["state"] == "firing"]


async def watch(pager):
    """Return the calls of the pager, until long enough after the first, and the alerts that fire at the end."""
    first = await asyncio.wait_for(pager.pages.get(), PAGED_WITHIN)
    await asyncio.sleep(WATCHED_SECONDS)
    calls = [first]
    while not pager.pages.empty():
        calls.append(pager.pages.get_nowait())
    return {"pages": calls, "firing": await asyncio.to_thread(firing, pager.prometheus_port)}


async def play(folder, library, nodes):
    """Start all and watch."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(node(rank, nodes, folder, library)) for rank in range(nodes)]
        pager = GroupPager(folder / "monitoring", addresses)
        await pager.start(programs())
        try:
            return await watch(pager)
        finally:
            await pager.close()


def main():
    """Build the network, and play."""
    folder, library, nodes = sys.argv[1:]
    network("link set lo up", "link add switch type bridge", "addr add 10.77.0.254/24 dev switch", "link set switch up")
    print(json.dumps(asyncio.run(play(Path(folder), Path(library), int(nodes)))))


if __name__ == "__main__":
    main()
