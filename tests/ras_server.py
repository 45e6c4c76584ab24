"""A stand-in for the thread of NCCL that answers on the port of RAS, with what it is given to say."""

import asyncio
import json
import socket

VERSION = "NCCL version 2.27.7 compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 13000\n\n"


def listening(port=0):
    """Return a socket that shares the port, as all processes of a job do; nobody accepts unless it is served."""
    shared = socket.socket()
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    shared.bind(("127.0.0.1", port))
    shared.listen(64)
    return shared


class RasServer:
    """Answers as NCCL does: one reply for each command, and the body of the status until it closes."""

    def __init__(self, *bodies, json_too=True, port=0):
        self.bodies = list(bodies)
        self.heard = []
        self._json_too = json_too
        self._socket = listening(port)
        self.port = self._socket.getsockname()[1]

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, sock=self._socket)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        try:
            while line := await reader.readline():
                command = line.decode().strip()
                self.heard.append(command)
                if command == "VERBOSE STATUS":
                    writer.write(self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0])
                    await writer.drain()
                    return
                writer.write(self._reply(command))
        except ConnectionError:
            self.heard.append("gone")
        finally:
            writer.close()

    def _reply(self, command):
        if command.startswith("CLIENT PROTOCOL "):
            return b"SERVER PROTOCOL 2\n"
        if command.startswith("SET FORMAT") and not self._json_too:
            return f"ERROR: Unknown command {command}\n".encode()
        return b"OK\n"


def communicator(pids, counts, missing=(), host="127.0.0.1", failed=(), **more):
    """Return a communicator as the JSON has it: `counts` are of AllReduce; `missing` are (rank, pid, dead)."""
    ranks = [
        {
            "rank": rank,
            "host": host,
            "pid": pid,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {
                "init_state": 0,
                "async_error": 6 if pid in failed else 0,
                "finalize_called": False,
                "destroy_flag": False,
                "abort_flag": False,
            },
            "collective_counts": {"Broadcast": 0, "AllReduce": count, "AllGather": 12},
        }
        for rank, (pid, count) in enumerate(zip(pids, counts, strict=True))
    ]
    lost = [
        {
            "rank": rank,
            "host": host,
            "pid": pid,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {"unresponsive": not dead, "considered_dead": dead},
        }
        for rank, pid, dead in missing
    ]
    size = len(ranks) + len(lost)
    numbers = {"size": size, "ranks_count": len(ranks), "missing_ranks_count": len(lost)}
    return {"hash": "0xfeed", "secondary_hash": "0x1:0x2", **numbers, "ranks": ranks, "missing_ranks": lost, **more}


def as_json(*communicators):
    """Return the body of an answer."""
    head = {"nccl_version": "2.30.7", "cuda_runtime_version": 13000, "cuda_driver_version": 13000}
    tail = {"ras": {"collection_time_sec": 0.003, "timeouts_count": 0}}
    whole = {**head, "communicators_count": len(communicators), "communicators": list(communicators), **tail}
    return json.dumps(whole, indent=2).encode()


def as_text(errors="", warnings=""):
    """Return the body of an answer of an NCCL that knows no JSON."""
    table = "Group     Comms     Nodes     Ranks\n    0         1         1         8\n"
    head = f"{VERSION}Job summary\n===========\n\nCommunicators... (0.00s)\n=============\n\n{table}"
    return f"{head}\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}".encode()
