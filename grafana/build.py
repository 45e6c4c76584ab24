"""Write the dashboards: `python grafana/build.py [FOLDER]`, by default over those in grafana/dashboards."""

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

import fleet
import own
import server

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS: dict[str, Callable[[], Dashboard]] = {
    "fleet": fleet.dashboard,
    "server": server.dashboard,
    "exporter": own.dashboard,
}


def settled(page: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard with what the builder leaves open: ids, and links and annotations that are in sight."""
    numbers, saved = count(1), 0
    for panel in page["panels"]:
        inside = panel.get("panels", ())
        for one in (panel, *inside):
            one["id"] = next(numbers)
            one["gridPos"]["y"] -= saved
        # A closed row is one line high; what is in it lies over what comes after.
        saved += max((one["gridPos"]["y"] + one["gridPos"]["h"] for one in inside), default=panel["gridPos"]["y"] + 1)
        saved -= panel["gridPos"]["y"] + 1
    for part in (*page["links"], *page["annotations"]["list"]):
        part.pop("placement", None)
    return {"id": None, **page}


def main(folder: Path) -> None:
    """Write each dashboard to a file of its own."""
    for name, build in DASHBOARDS.items():
        page = settled(json.loads(json.dumps(build().build(), cls=JSONEncoder)))
        text = json.dumps(page, indent=2, ensure_ascii=False, sort_keys=True)
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
