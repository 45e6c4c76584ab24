"""What do all dashboards share? Names, variables, annotations, links, and how panels are laid out."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    Panel,
    VariableRefresh,
    VariableSort,
)
from parts import select, source

TAG = "stallwatch"
RUNBOOKS = "https://github.com/stallwatch/stallwatch/blob/main/alerts/runbooks"
OURS = 'alertname=~"Inference.*|Stallwatch.*"'
OLDEST = "For Grafana 11 and newer; written by grafana/build.py, so change it there."

ANY_NODE = ('job=~"$job"', 'instance=~"$instance"')
ANY_SERVER = (*ANY_NODE, 'server=~"$server"')
THIS_NODE = ('job="$job"', 'instance="$instance"')
THIS_SERVER = (*THIS_NODE, 'server="$server"')

Rows = Sequence[tuple[str, Sequence[Builder[Panel]]]]


def runbook(alert: str) -> str:
    """Return where the runbook of an alert is."""
    return f"{RUNBOOKS}/{alert}.md"


def server_url(job: str, instance: str, server: str) -> str:
    """Return the address of the Server dashboard for the server that these macros name, over the same time."""
    names = f"var-job={job}&var-instance={instance}&var-server={server}"
    return f"/d/stallwatch-server?var-datasource=${{datasource}}&{names}&${{__url_time_range}}"


def frame(uid: str, name: str, text: str, since: str, refresh: str) -> dashboard.Dashboard:
    """Return a dashboard without panels."""
    page = dashboard.Dashboard(f"Stallwatch / {name}").uid(uid).description(f"{text} {OLDEST}").tags([TAG]).readonly()
    page.time(f"now-{since}", "now").refresh(refresh).timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    page.timepicker(dashboard.TimePicker().refresh_intervals(["5s", "10s", "30s", "1m", "5m"]))
    others = dashboard.DashboardLink("Stallwatch").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    page.link(others.as_dropdown(as_dropdown=False).keep_time(keep_time=True).include_vars(include_vars=True))
    runbooks = dashboard.DashboardLink("Runbooks").type(DashboardLinkType.LINK).icon("doc").url(RUNBOOKS)
    return page.link(runbooks.tooltip("What each alert means and what to do").target_blank(target_blank=True))


def choose_source() -> dashboard.DatasourceVariable:
    """Return the choice of the Prometheus that is asked."""
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def choose(
    name: str, label: str, metric: str, *matchers: str, several: bool, of: str = "", everything: str = ""
) -> dashboard.QueryVariable:
    """Return a choice among the values of a label of a metric; `everything` is the pattern behind All."""
    query = f"label_values({select(metric, *matchers) if matchers else metric}, {of or name})"
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(source())
        .query(query)
        .definition(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(several)
        .include_all(several)
    )
    return variable.all_value(everything) if everything else variable


def annotate(page: dashboard.Dashboard, alerts: Sequence[str], verdicts: Sequence[str]) -> None:
    """Mark on every panel when an alert fired and when a server had stalled or was dead."""
    page.annotation(
        _marks("Alerts that fire", "red", select("ALERTS", 'alertstate="firing"', OURS, *alerts))
        .title_format("{{alertname}}")
        .text_format("{{server}} {{instance}}")
        .tag_keys("severity,alertname")
    )
    hung = select("stallwatch_server_verdict", 'verdict=~"stalled|dead"', *verdicts)
    page.annotation(
        _marks("Stalled or dead", "dark-red", f"{hung} == 1")
        .title_format("{{verdict}}")
        .text_format("{{server}} on {{instance}}")
        .tag_keys("verdict")
    )


def _marks(name: str, colour: str, expr: str) -> dashboard.AnnotationQuery:
    marks = dashboard.AnnotationQuery().name(name).datasource(source()).expr(expr).step("15s")
    return marks.enable(enable=True).icon_color(colour)


def lay_out(page: dashboard.Dashboard, top: Sequence[Builder[Panel]], rows: Rows, folded: Rows = ()) -> None:
    """Put panels under each other, `folded` ones into rows that are closed at first."""
    for panel in top:
        page.with_panel(panel)
    for title, panels in rows:
        page.with_row(dashboard.Row(title))
        for panel in panels:
            page.with_panel(panel)
    for title, panels in folded:
        row = dashboard.Row(title)
        for panel in panels:
            row.with_panel(panel)
        page.with_row(row)
