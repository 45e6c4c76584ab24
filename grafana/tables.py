"""How do several queries become one table, each a column, one row for each server or node?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, Panel
from parts import WIDTH, mapping, properties, row_of, source
from words import Word

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the label it shows or, with an expression, the value of that query."""

    title: str
    label: str = ""
    expr: str = ""
    unit: str = ""
    words: Sequence[Word] = ()
    links: Sequence[tuple[str, str]] = ()
    width: int = 0

    def looks(self) -> Mapping[str, object]:
        """Return what is set for this column alone."""
        looks: dict[str, object] = {}
        if self.unit:
            looks["unit"] = self.unit
        if self.width:
            looks["custom.width"] = self.width
        if self.words:
            looks["mappings"] = mapping(self.words)
            looks["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
        if self.links:
            looks["links"] = [{"title": title, "url": url} for title, url in self.links]
        return looks


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
    """Return a table; `hidden` are labels of the queries that it does not show. A column with both a label and an
    expression shows the label of that query and hides its value.
    """
    panel = table.Panel().title(title).description(text).datasource(source()).no_value(empty)
    panel.height(height).span(width).cell_height(models.TableCellHeight.SM).show_header(show_header=True)
    queries = [column for column in columns if column.expr]
    names = _value_names(len(queries))
    for (ref, _), column in zip(names, queries, strict=True):
        panel.with_target(row_of(column.expr).ref_id(ref).datasource(source()))
    if len(queries) > 1:
        panel.with_transformation(DataTransformerConfig("merge", options={}))
    values = {column.title: name for (_, name), column in zip(names, queries, strict=True)}
    panel.with_transformation(_arranged(columns, values, hidden))
    panel.override_by_regexp("/.*/", properties({"noValue": NOTHING}))
    for column in columns:
        if looks := column.looks():
            panel.override_by_name(column.title, properties(looks))
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(desc=False)])
    return panel


def _value_names(count: int) -> list[tuple[str, str]]:
    """Return the name of each query and of the field with its values, as Grafana gives them."""
    if count == 1:
        return [("A", "Value")]
    return [(ref, f"Value #{ref}") for ref in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count]]


def _arranged(columns: Sequence[Column], values: Mapping[str, str], hidden: Sequence[str]) -> DataTransformerConfig:
    fields = [column.label or values[column.title] for column in columns]
    unseen = [
        "Time",
        "__name__",
        *hidden,
        *(values[column.title] for column in columns if column.label and column.expr),
    ]
    options = {
        "excludeByName": dict.fromkeys(unseen, True),
        "indexByName": {name: position for position, name in enumerate(fields)},
        "renameByName": {name: column.title for name, column in zip(fields, columns, strict=True)},
    }
    return DataTransformerConfig("organize", options=options)


def macro(title: str) -> str:
    """Return what stands for the value of another column of the same row, in a link."""
    return f"${{__data.fields.{title}:percentencode}}"
