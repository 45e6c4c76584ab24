"""Grafana finds Prometheus and the dashboards by itself."""

import yaml

from dashboards import GRAFANA
from test_docs import ROOT


def provisioned(kind):
    """Return what a provisioning file says."""
    (path,) = (GRAFANA / "provisioning" / kind).iterdir()
    return yaml.safe_load(path.read_text())


def test_grafana_is_told_where_prometheus_is():
    """The data source keeps its uid, knows the scrape interval, and shows the rules of Prometheus."""
    (source,) = provisioned("datasources")["datasources"]
    scraped = yaml.safe_load((ROOT / "alerts" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert (source["uid"], source["type"], source["url"]) == ("prometheus", "prometheus", "http://localhost:9090")
    assert source["jsonData"]["timeInterval"] == scraped
    assert source["jsonData"]["manageAlerts"] is True


def test_grafana_is_told_where_the_dashboards_are():
    """They come from files, and what is changed in Grafana is not kept."""
    (provider,) = provisioned("dashboards")["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
