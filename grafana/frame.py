"""What do all dashboards share? Names, variables, annotations, links, and how panels are laid out."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    Panel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from parts import source
from series import select

TAG = "stallwatch"
RUNBOOKS = "https://github.com/stallwatch/stallwatch/blob/main/alerts/runbooks"
OLDEST = "For Grafana 11 and newer. Written by grafana/build.py: change it there."
STEP = "15s"

Row = tuple[str, Sequence[Builder[Panel]]]


def runbook(alert: str) -> str:
    """Return where the runbook of an alert is."""
    return f"{RUNBOOKS}/{alert}.md"


def server_url(job: str, instance: str, server: str) -> str:
    """Return the address of the Server dashboard for the server that these macros name, over the same time."""
    names = f"var-job={job}&var-instance={instance}&var-server={server}"
    return f"/d/stallwatch-server?var-datasource=${{datasource}}&{names}&${{__url_time_range}}"


def exporter_url(job: str, instance: str) -> str:
    """Return the address of the Exporter dashboard for the node that these macros name, over the same time."""
    names = f"var-job={job}&var-instance={instance}"
    return f"/d/stallwatch-exporter?var-datasource=${{datasource}}&{names}&${{__url_time_range}}"


def frame(name: str, text: str, since: str, refresh: str) -> dashboard.Dashboard:
    """Return a dashboard without panels, with the choice of the Prometheus that is asked."""
    page = dashboard.Dashboard(f"Stallwatch / {name}").uid(f"stallwatch-{name.lower()}").tags([TAG]).readonly()
    page.description(f"{text} {OLDEST}").time(f"now-{since}", "now").refresh(refresh).timezone("browser")
    page.tooltip(DashboardCursorSync.CROSSHAIR)
    page.timepicker(dashboard.TimePicker().refresh_intervals(["5s", "10s", "30s", "1m", "5m"]))
    others = dashboard.DashboardLink("Stallwatch").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    page.link(others.as_dropdown(as_dropdown=False).keep_time(keep_time=True).include_vars(include_vars=True))
    runbooks = dashboard.DashboardLink("Runbooks").type(DashboardLinkType.LINK).icon("doc").url(RUNBOOKS)
    page.link(runbooks.tooltip("What each alert means and what to do").target_blank(target_blank=True))
    return page.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))


def choose(name: str, label: str, series: str, *, several: bool, everything: str = "") -> dashboard.QueryVariable:
    """Return a choice among the values that the label of this name has; `everything` is the pattern behind All."""
    query = f"label_values({series}, {name})"
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
    if several:
        variable.current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    return variable.all_value(everything) if everything else variable


def mark_alerts(page: dashboard.Dashboard, name: str, *matchers: str) -> None:
    """Mark on every panel when an alert began to fire: not how long, since that would cover what is shown."""
    firing = select("ALERTS", 'alertstate="firing"', *matchers)
    marks = _marks(name, "red", f"{firing} unless {firing} offset $__interval")
    page.annotation(
        marks.title_format("{{alertname}}").text_format("{{server}} {{instance}}").tag_keys("severity,alertname")
    )


def mark_stalls(page: dashboard.Dashboard, *matchers: str, while_it_lasts: bool) -> None:
    """Mark on every panel when a server stalled or died, or all the time while it is so."""
    hung = f"{select('stallwatch_server_verdict', *matchers)} == 1"
    expr = hung if while_it_lasts else f"({hung}) unless ({hung.replace('}', '} offset $__interval')})"
    marks = _marks("Stalled or dead", "dark-red", expr)
    page.annotation(marks.title_format("{{verdict}}").text_format("{{server}} on {{instance}}").tag_keys("verdict"))


def _marks(name: str, colour: str, expr: str) -> dashboard.AnnotationQuery:
    marks = dashboard.AnnotationQuery().name(name).datasource(source()).expr(expr).step(STEP)
    return marks.enable(enable=True).icon_color(colour)


def lay_out(
    page: dashboard.Dashboard, top: Sequence[Builder[Panel]], rows: Sequence[Row], folded: Sequence[Row] = ()
) -> dashboard.Dashboard:
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
    return page
