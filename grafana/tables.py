"""How do several queries become one table, each a column, one row for each server or node?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, Panel

from parts import WIDTH, mapping, properties, row_of, source
from words import Word

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the value of a query, or a label, with a query also the label of that one alone.

    From `bad` on a value is red; `links` are (title, address); `width` is in pixels.
    """

    title: str
    label: str = ""
    expr: str = ""
    unit: str = ""
    bad: float | None = None
    words: Sequence[Word] = ()
    links: Sequence[tuple[str, str]] = ()
    width: int = 0

    def looks(self) -> Mapping[str, object]:
        """Return what is set for this column alone."""
        looks: dict[str, object] = {"unit": self.unit} if self.unit else {}
        if self.width:
            looks["custom.width"] = self.width
        if self.words:
            looks |= {"mappings": mapping(self.words), "custom.align": "left"}
        if self.words or self.bad is not None:
            # What is not there has no colour either: it is neither well nor ill.
            red = [{"value": self.bad, "color": "red"}] if self.bad is not None else []
            looks["thresholds"] = {"mode": "absolute", "steps": [{"value": None, "color": "transparent"}, *red]}
            looks["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
        if self.links:
            looks["links"] = [{"title": title, "url": url} for title, url in self.links]
        return looks


def macro(title: str) -> str:
    """Return what stands, in a link, for the value of another column of the same row."""
    return f"${{__data.fields.{title}:percentencode}}"


def rows(
    title: str,
    text: str,
    empty: str,
    columns: Sequence[Column],
    *,
    hidden: Sequence[str] = (),
    sort: str = "",
    height: int = 7,
    width: int = WIDTH,
) -> Builder[Panel]:
    """Return a table; `hidden` are labels of its queries that it does not show."""
    panel = table.Panel().title(title).description(text).datasource(source()).no_value(empty)
    panel.height(height).span(width).cell_height(models.TableCellHeight.SM).show_header(show_header=True)
    queries = [column for column in columns if column.expr]
    values = _value_names(queries)
    for ref, column in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(row_of(column.expr).ref_id(ref).datasource(source()))
    if len(queries) > 1:
        panel.with_transformation(DataTransformerConfig("merge", options={}))
    panel.with_transformation(_arranged(columns, values, hidden))
    panel.override_by_regexp("/.*/", properties({"noValue": NOTHING}))
    for column in columns:
        if looks := column.looks():
            panel.override_by_name(column.title, properties(looks))
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(desc=False)])
    return panel


def _value_names(queries: Sequence[Column]) -> dict[str, str]:
    """Return by the title of its column the field with the values of each query, as Grafana names it."""
    if len(queries) == 1:
        return {queries[0].title: "Value"}
    return {column.title: f"Value #{ref}" for ref, column in zip(ascii_uppercase, queries, strict=False)}


def _arranged(columns: Sequence[Column], values: Mapping[str, str], hidden: Sequence[str]) -> DataTransformerConfig:
    fields = [column.label or values[column.title] for column in columns]
    beside = [values[column.title] for column in columns if column.label and column.expr]
    options = {
        "excludeByName": dict.fromkeys(["Time", "__name__", *hidden, *beside], True),
        "indexByName": {name: position for position, name in enumerate(fields)},
        "renameByName": {name: column.title for name, column in zip(fields, columns, strict=True)},
    }
    return DataTransformerConfig("organize", options=options)
