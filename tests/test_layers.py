"""Imports point one way: from what is looked at to what is shown."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "exporter" / "stallwatch"
LAYERS = (
    {"aside", "lightly", "tidying", "systemd"},
    {"snapshot", "values", "keeping", "shipped", "redaction", "deltas", "plainfile"},
    {"exchange", "steady_clock"},
    {"http_probe", "course", "trust", "networks", "sections", "answer"},
    {"config", "journal", "asking"},
    {"node.procfs", "node.inside"},
    {"engines"},
    {"node", "gpus", "logs", "loads", "heartbeats", "api_keys"},
    {"discovery", "finder"},
    {"collectors", "sources"},
    {"child", "trial", "expense"},
    {"leanchild"},
    {"workers"},
    {"placement", "roster", "slots", "lanes", "mending", "release"},
    {"past", "news"},
    {"tracks", "wording"},
    {"history", "lives", "judging"},
    {"verdict"},
    {"watcher", "recordingfile"},
    {"recording", "recollection"},
    {"flight"},
    {"view"},
    {"signals"},
    {"monitor"},
    {"trends", "notify"},
    {"pages"},
    {"serverfamilies", "ownfamilies", "status", "report", "terminal"},
    {"evidence"},
    {"encoding"},
    {"exposition"},
    {"settings"},
    {"gate"},
    {"web"},
    {"assembly", "check", "orders"},
    {"serve"},
    {"simulation", "replay"},
    {"commandline"},
    {"cli"},
    {"__main__"},
)


def layer_of(module):
    """Return the layer of a module, by its full name or that of its folder."""
    names = (module, module.split(".")[0])
    levels = [level for name in names for level, layer in enumerate(LAYERS) if name in layer]
    assert levels, f"{module} has no layer"
    return levels[0]


def imported(path):
    """Yield the modules of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "stallwatch":
            yield from (alias.name for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stallwatch."):
            inner = node.module.removeprefix("stallwatch.")
            folder = "." not in inner and (PACKAGE / inner).is_dir()
            yield from (f"{inner}.{alias.name}" for alias in node.names) if folder else (inner,)


def name_of(path):
    """Return the module of a file."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def test_nothing_imports_what_comes_after_it():
    """Each file imports only what stands in its own layer or an earlier one."""
    files = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in files
        for module in imported(path)
        if layer_of(module) > layer_of(name_of(path))
    ]
    assert wrong == []


def test_no_module_is_reached_through_the_source_root():
    """Importing through exporter/ would load every module twice."""
    assert not [path for path in PACKAGE.rglob("*.py") if "exporter.stallwatch" in path.read_text()]
