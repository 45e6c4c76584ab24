"""Imports point one way: from what is looked at to what is shown."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "exporter" / "stallwatch"
LAYERS = (
    {"snapshot"},
    {"values", "config", "procfs", "journal", "yaml_file"},
    {"engines"},
    {"sources", "nvml", "markers", "tail"},
    {"discovery"},
    {"collectors"},
    {"child", "trial"},
    {"workers"},
    {"placement", "roster", "lanes"},
    {"history"},
    {"monitor"},
    {"serverfamilies", "ownfamilies", "status"},
    {"exposition"},
    {"web", "flags", "settings", "reload"},
    {"serve"},
    {"simulation"},
    {"cli"},
    {"__main__"},
)


def layer_of(path):
    """Return the layer of a file, by the first part of its place in the package."""
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    levels = [level for level, names in enumerate(LAYERS) if part in names]
    assert levels, f"{part} has no layer"
    return levels[0]


def imported(path):
    """Yield the parts of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "stallwatch":
            yield from (alias.name for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stallwatch."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("stallwatch."))


def test_nothing_imports_what_comes_after_it():
    """Each file imports only what stands in its own layer or an earlier one."""
    files = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files
        for name in imported(path)
        if layer_of(PACKAGE / f"{name}.py") > layer_of(path)
    ]
    assert wrong == []
