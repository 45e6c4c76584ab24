"""Days of a server that never hangs: scenarios rolled by a seeded dice, with all that is harmless and looks bad."""

import random

MINUTE, HOUR = 60.0, 3600.0
LOADED_GIB = 60
CLIENTS = {
    "sglang with metrics": {"engine": "sglang", "version": "0.5.9", "args": []},
    "sglang that sleeps": {"engine": "sglang", "version": "0.5.14", "args": ["--sleep-on-idle"]},
    "sglang without metrics": {"engine": "sglang", "version": "0.5.9", "args": []},
    "old sglang": {"engine": "sglang", "version": "0.4.9", "args": []},
    "old sglang with metrics": {"engine": "sglang", "version": "0.5.5", "args": []},
    "vllm": {"engine": "vllm", "version": "0.11.0", "args": ["some/model"]},
    "replicas": {"engine": "sglang", "version": "0.5.9", "args": ["--dp-size", "2"]},
}
GAPS = ("gpu", "scheduler", "log", "health", "engine")


class Days:
    """Rolls the dice for one server."""

    def __init__(self, seed, kind):
        self.dice = random.Random(seed)
        self.kind = kind
        self.metrics = "without" not in kind and kind != "old sglang"
        self.segments = []

    def scenario(self, seconds):
        """Return a scenario of at least so many seconds."""
        self.start()
        while sum(segment["for"] for segment in self.segments) < seconds:
            self.dice.choices((self.traffic, self.idle, self.spell, self.deploy), (6, 4, 6, 2))[0]()
        server = {**CLIENTS[self.kind], "segments": self.segments}
        return {"name": self.kind, "node": {"gpus": 2 if self.kind == "replicas" else 1}, "servers": [server]}

    def add(self, seconds, **given):
        """Add a stretch of time, cut up by gaps in which one signal or several cannot be read."""
        memory = given.get("gpu", {}).get("memory_gib")
        left, done = float(round(seconds)), 0.0
        while left > 0:
            piece = min(left, round(self.dice.expovariate(1 / (40 * MINUTE))) + 30.0)
            shown = {name: dict(value) if isinstance(value, dict) else value for name, value in given.items()}
            if isinstance(memory, dict):
                at = [
                    memory["from"] + (memory["to"] - memory["from"]) * part / seconds for part in (done, done + piece)
                ]
                shown["gpu"]["memory_gib"] = {"from": min(at[0], at[1]), "to": at[1]}
            self.segments.append({"for": piece, **shown})
            left, done = left - piece, done + piece
            if left > 2 * MINUTE and self.dice.random() < 0.6:
                gap = float(self.dice.randint(5, 120))
                missing = self.dice.sample(GAPS, self.dice.choice((1, 1, 1, 2, 3, 5)))
                self.segments.append({"for": gap, **shown, **dict.fromkeys(missing)})
                left, done = left - gap, done + gap

    def engine(self, running=0, queued=0, tokens=0.0):
        """Return what the engine says of itself, where it does."""
        if not self.metrics:
            return {"engine": None}
        said = {"running": running, "queued": queued, "tokens_per_second": tokens}
        return {"engine": {**said, "heartbeat": True} if self.kind == "sglang that sleeps" else said}

    def quiet(self, **scheduler):
        """Return the signals of a scheduler that moves by nothing but what is given."""
        base = {"cpu": 0.5, "read_mib_per_second": 0, "faults_per_second": 0, "compiler": False}
        return {"scheduler": {**base, "heartbeat_switches": 30, **scheduler}}

    def start(self):
        """Start: meet, load for up to an hour, compile, each moving by one sign only."""
        dice, cold = self.dice, {"utilization": 0, "memory_gib": 0.5, "power_watts": 60}
        refused = {"health": "refused", "engine": None}
        self.add(
            dice.randint(20, 90),
            phase="launch",
            gpu=cold,
            log="progress",
            **self.quiet(faults_per_second=4000),
            **refused,
        )
        self.add(
            dice.randint(5, 100), phase="distributed_init", gpu=cold, log="silent", **self.quiet(cpu=0.1), **refused
        )
        load = dice.uniform(1, 58) * MINUTE
        way = dice.choice(("read", "faults", "memory", "log"))
        shown = self.quiet(
            cpu=0.1,
            read_mib_per_second=80 if way == "read" else 0,
            faults_per_second=18000 if way == "faults" else 0,
        )
        rise = {"from": 1, "to": LOADED_GIB} if way == "memory" else 2
        log = "progress" if way == "log" else "silent"
        self.add(load, phase="loading_weights", gpu={**cold, "memory_gib": rise}, log=log, **shown, **refused)
        loaded = {**cold, "memory_gib": LOADED_GIB}
        self.add(dice.randint(5, 200), phase="loaded", gpu=loaded, log="silent", **self.quiet(cpu=0), **refused)
        way = dice.choice(({"compiler": True, "tree_cpu": 2}, {"faults_per_second": 20000}))
        self.add(
            dice.uniform(1, 43) * MINUTE, phase="compiling", gpu=loaded, log="silent", **self.quiet(**way), **refused
        )
        self.idle(dice.randint(30, 300))

    def idle(self, seconds=None):
        """Rest for hours."""
        asleep = "sleeps" in self.kind
        scheduler = self.quiet(cpu=0 if asleep else 1.0, heartbeat_switches=1 if asleep else 900)
        gpu = {"utilization": self.dice.choice((0, 0, 0, 100)), "memory_gib": LOADED_GIB, "power_watts": 90}
        log = self.dice.choice(("silent", "access", "heartbeat"))
        seconds = seconds or self.dice.uniform(5 * MINUTE, 6 * HOUR)
        self.add(seconds, phase="ready", gpu=gpu, log=log, health="ok", **scheduler, **self.engine())

    def traffic(self, seconds=None, health="ok", **gpu):
        """Serve, fast or slowly."""
        dice = self.dice
        gpu = {
            "utilization": dice.choice((0, 30, 95)),
            "memory_gib": LOADED_GIB,
            "power_watts": dice.choice((100, 450)),
            **gpu,
        }
        tokens = dice.choice((3.0, 60.0, 2000.0))
        engine = self.engine(dice.randint(1, 50), dice.choice((0, 0, 40)), tokens)
        seconds = seconds or dice.uniform(2 * MINUTE, 3 * HOUR)
        self.add(seconds, phase="ready", gpu=gpu, log="progress", health=health, **self.quiet(cpu=1.0), **engine)

    def spell(self):
        """Do something that looks like a hang and is none."""
        dice, busy = self.dice, {"utilization": 99, "memory_gib": LOADED_GIB, "power_watts": 500}
        frozen = self.engine(2, 1, 0.0)
        what = dice.choice(("prefill", "pause", "probes", "compile", "sticky", "burst"))
        if what == "prefill":
            self.add(
                dice.uniform(1, 14) * MINUTE,
                phase="ready",
                gpu=busy,
                log="silent",
                health="timeout",
                **self.quiet(cpu=1.0),
                **frozen,
            )
        elif what == "pause":
            cold = {**busy, "utilization": 0, "power_watts": 90}
            self.add(
                dice.uniform(10, 130), phase="ready", gpu=cold, log="silent", health=503, **self.quiet(cpu=0), **frozen
            )
        elif what == "probes":
            self.traffic(dice.uniform(1, 60) * MINUTE, health=dice.choice(("timeout", 503)))
        elif what == "compile":
            cold = {**busy, "utilization": 0, "power_watts": 90}
            way = self.quiet(compiler=True, tree_cpu=1)
            self.add(dice.uniform(1, 15) * MINUTE, phase="ready", gpu=cold, log="silent", health=503, **way, **frozen)
        elif what == "sticky" and self.kind not in {"vllm", "replicas"} and "old" not in self.kind:
            cold = {**busy, "utilization": 0, "power_watts": 90}
            self.add(
                dice.uniform(1, 40) * MINUTE,
                phase="ready",
                gpu=cold,
                log="access",
                health="ok",
                **self.quiet(cpu=1),
                **frozen,
            )
        self.traffic(dice.uniform(1, 10) * MINUTE)

    def deploy(self):
        """Drain, go in order, and start again."""
        seconds = self.dice.uniform(10, 25 * MINUTE)
        gpu = {"utilization": 40, "memory_gib": LOADED_GIB, "power_watts": 300}
        frozen = self.engine(1, 0, 0.0)
        self.add(seconds, phase="stopping", gpu=gpu, log="silent", health="refused", **self.quiet(cpu=0.2), **frozen)
        self.segments[-1]["exit"] = "orderly"
        self.start()
