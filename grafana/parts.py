"""How does a panel look? Lines, bands and numbers, each kind everywhere the same."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models.dashboard import (
    DynamicConfigValue,
    FieldColorModeId,
    Panel,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from words import GREY, PALE, Word

WIDTH = 24
AXIS, LEGEND = 120, 220
"""Pixels left and right of plots as wide as the page: where all begin and end alike, a stall is one line down."""

Query = prometheus.Dataquery
Override = tuple[str, Mapping[str, object]]


def source() -> models.DataSourceRef:
    """Return the data source that the reader has chosen."""
    return models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def over_time(expr: str, legend: str) -> Query:
    """Return a query over the time that is shown."""
    return Query().expr(expr).legend_format(legend).range()


def now(expr: str, legend: str = "") -> Query:
    """Return a query of the last moment that is shown."""
    return Query().expr(expr).legend_format(legend).instant()


def row_of(expr: str) -> Query:
    """Return a query of the last moment, for a table."""
    return Query().expr(expr).instant().format(PromQueryFormat.TABLE)


def mapping(words: Sequence[Word]) -> list[ValueMap]:
    """Return what stands for each code: its word and colour."""
    return [ValueMap({word.key: ValueMappingResult(word.text, word.colour, None, n) for n, word in enumerate(words)})]


def thresholds(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    """Return thresholds from (value, colour); the first has no value."""
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value, colour) for value, colour in steps])
    )


def fixed(colour: str) -> dashboard.FieldColor:
    """Return one colour for all series."""
    return dashboard.FieldColor().mode(FieldColorModeId.FIXED).fixed_color(colour)


def properties(values: Mapping[str, object]) -> list[DynamicConfigValue]:
    """Return what an override sets."""
    return [DynamicConfigValue(name, value) for name, value in values.items()]


def link(title: str, url: str) -> dashboard.DashboardLink:
    """Return a link of a panel or of its values."""
    return dashboard.DashboardLink(title).url(url).target_blank(target_blank=url.startswith("http"))


def limit_line(pattern: str, colour: str = "red") -> Override:
    """Return the look of a line that is a limit, for the series whose names fit."""
    return pattern, {
        "color": {"mode": "fixed", "fixedColor": colour},
        "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
        "custom.lineWidth": 1,
        "custom.fillOpacity": 0,
    }


def graph(
    title: str,
    text: str,
    unit: str,
    empty: str,
    queries: Sequence[Query],
    *,
    most: float | None = None,
    usual: float | None = None,
    height: int = 5,
    width: int = WIDTH,
    overrides: Sequence[Override] = (),
    lines: dashboard.ThresholdsConfig | None = None,
    stacked: bool = False,
) -> Builder[Panel]:
    """Return a panel of lines; `empty` says what it means when there is none, `lines` are drawn across it.

    The axis ends at `most`, or at `usual` unless there is more.
    """
    panel = (
        timeseries.Panel()
        .unit(unit)
        .min(0)
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
        .line_width(1)
        .fill_opacity(60 if stacked else 0)
        .show_points(models.VisibilityMode.NEVER)
        .span_nulls(span_nulls=False)
        .legend(_legend(beside=width == WIDTH))
        .tooltip(common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI).sort(models.SortOrder.DESCENDING))
    )
    if width == WIDTH:
        panel.axis_width(AXIS)
    if stacked:
        panel.stacking(common.StackingConfig().mode(models.StackingMode.NORMAL).group("A"))
    if most is not None:
        panel.max(most)
    if usual is not None:
        panel.axis_soft_max(usual)
    if lines is not None:
        style = common.GraphThresholdsStyleConfig().mode(models.GraphThresholdsStyleMode.DASHED)
        panel.thresholds(lines).thresholds_style(style)
    for pattern, values in overrides:
        panel.override_by_regexp(pattern, properties(values))
    _frame(panel, title, text, empty, queries)
    return panel.height(height).span(width)


def bands(
    title: str,
    text: str,
    empty: str,
    queries: Sequence[Query],
    words: Sequence[Word],
    *,
    height: int = 5,
    axis: int | None = AXIS,
    by_query: Mapping[str, Sequence[Word]] | None = None,
) -> Builder[Panel]:
    """Return a panel of one band per series, which shows codes as words; `by_query` has the words of other queries.

    Names are cut off that are longer than the axis is wide; without a width it is as wide as they are.
    """
    panel = (
        statetimeline.Panel()
        .unit("none")
        .color_scheme(fixed(GREY))
        .mappings(mapping(words))
        .fill_opacity(80)
        .line_width(0)
        .row_height(0.8)
        .merge_values(merge_values=True)
        .show_value(models.VisibilityMode.AUTO)
        .legend(_legend(beside=True))
    )
    if axis:
        panel.axis_width(axis)
    for ref, others in (by_query or {}).items():
        panel.override_by_query(ref, [DynamicConfigValue("mappings", mapping(others))])
    _frame(panel, title, text, empty, queries)
    return panel.height(height).span(WIDTH)


def tiles(
    title: str, text: str, empty: str, queries: Sequence[Query], colours: Sequence[str], *, width: int
) -> Builder[Panel]:
    """Return a panel of one count per query, each under its name, in its colour where it is not 0."""
    panel = (
        stat.Panel()
        .unit("none")
        .color_mode(models.BigValueColorMode.BACKGROUND_SOLID)
        .graph_mode(models.BigValueGraphMode.NONE)
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .orientation(models.VizOrientation.VERTICAL)
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    )
    _frame(panel, title, text, empty, queries)
    for ref, colour in zip(ascii_uppercase, colours, strict=False):
        steps = [{"value": None, "color": PALE}, {"value": 1, "color": colour}]
        panel.override_by_query(ref, properties({"thresholds": {"mode": "absolute", "steps": steps}}))
    return panel.height(4).span(width)


def number(
    title: str,
    text: str,
    unit: str,
    empty: str,
    query: Query,
    *,
    width: int = 4,
    height: int = 4,
    words: Sequence[Word] = (),
    steps: dashboard.ThresholdsConfig | None = None,
    links: Sequence[dashboard.DashboardLink] = (),
) -> Builder[Panel]:
    """Return a panel of the last value, as a number or, where there are words for it, as one of them."""
    panel = (
        stat.Panel()
        .unit(unit)
        .mappings(mapping(words) if words else [])
        .color_mode(models.BigValueColorMode.BACKGROUND_SOLID if words or steps else models.BigValueColorMode.NONE)
        .graph_mode(models.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(steps or thresholds((None, PALE)))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .data_links(list(links))
    )
    _frame(panel, title, text, empty, [query])
    return panel.height(height).span(width)


def _legend(*, beside: bool) -> common.VizLegendOptions:
    options = common.VizLegendOptions().display_mode(models.LegendDisplayMode.LIST).show_legend(show_legend=True)
    if beside:
        return options.placement(models.LegendPlacement.RIGHT).width(LEGEND)
    return options.placement(models.LegendPlacement.BOTTOM)


def _frame(
    panel: timeseries.Panel | statetimeline.Panel | stat.Panel,
    title: str,
    text: str,
    empty: str,
    queries: Sequence[Query],
) -> None:
    panel.title(title).description(text).datasource(source()).no_value(empty)
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(query.ref_id(ref).datasource(source()))
