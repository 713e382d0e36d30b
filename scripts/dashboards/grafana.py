"""A dashboard's JSON, made by Grafana's own library: no other module here knows Grafana."""

from __future__ import annotations

import json
from collections.abc import Callable
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common as options,
    dashboard as builders,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import (
    common,
    dashboard as models,
    heatmap as heatmaps,
    prometheus as queries,
)

from scripts.dashboards.panel import Dashboard, Kind, Panel, Query, Step, Variable, Word

TAG = "transformer-serving"
# Chosen at the top; at first it is compose/monitoring's own.
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_FIRST_SOURCE = models.VariableOption(text="Prometheus", value="prometheus")

_Builder = timeseries.Panel | heatmap.Panel | stat.Panel | bargauge.Panel | statetimeline.Panel


def text(shown: Dashboard) -> str:
    """The file's content."""
    values: dict[str, Any] = json.loads(JSONEncoder().encode(_built(shown).build()))
    # What the data source reads of a mark, and the library has no words for.
    values["annotations"] = {
        "list": [
            {
                "name": mark.title,
                "datasource": {"type": _SOURCE.type_val, "uid": _SOURCE.uid},
                "enable": True,
                "iconColor": "blue",
                "expr": mark.expression,
                "step": "15s",
                "titleFormat": mark.title,
                "textFormat": mark.text,
            }
            for mark in shown.marks
        ]
    }
    return json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _built(shown: Dashboard) -> builders.Dashboard:
    made = (
        builders.Dashboard(shown.title)
        .uid(shown.uid)
        .description(shown.description)
        .tags([TAG])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .link(
            builders.DashboardLink("Others")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
        )
        .with_variable(
            builders.DatasourceVariable("datasource")
            .label("Prometheus")
            .type("prometheus")
            .current(_FIRST_SOURCE)
        )
    )
    for variable in shown.variables:
        made.with_variable(_variable(variable))
    number = 0
    for row in shown.rows:
        number += 1
        made.with_row(builders.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made.with_panel(_panel(panel).id(number))
    return made


def _variable(variable: Variable) -> builders.QueryVariable:
    made = (
        builders.QueryVariable(variable.name)
        .query(variable.query)
        .datasource(_SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.hidden:
        made.hide(models.VariableHide.HIDE_VARIABLE)
    if variable.pattern:
        made.regex(variable.pattern)
    return made


def _panel(panel: Panel) -> _Builder:
    made = _DRAWN[panel.kind]()
    made.title(panel.title).description(panel.said).unit(panel.unit)
    made.datasource(_SOURCE).height(panel.kind.height).span(panel.width)
    if panel.steps:
        made.thresholds(_thresholds(panel.steps))
    if panel.words:
        made.mappings([_words(panel.words)])
    if panel.decimals is not None:
        made.decimals(panel.decimals)
    if panel.nothing:
        made.no_value(panel.nothing)
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        made.with_target(_target(panel.kind, query).ref_id(letter))
    return made


def _target(kind: Kind, query: Query) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expression).datasource(_SOURCE)
    made.legend_format(query.legend or "__auto")
    if kind is Kind.HEATMAP:
        made.format(queries.PromQueryFormat.HEATMAP)
    return made.instant() if kind.is_instant else made.range()


def _lines() -> timeseries.Panel:
    return (
        timeseries.Panel()
        .min(0)
        .line_width(1)
        .fill_opacity(8)
        .show_points(common.VisibilityMode.NEVER)
        .tooltip(
            options.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
        .legend(
            options.VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs([])
        )
        .thresholds_style(
            options.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    )


def _stacked() -> timeseries.Panel:
    return (
        _lines()
        .fill_opacity(40)
        .stacking(options.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    )


def _heatmap() -> heatmap.Panel:
    return (
        heatmap.Panel()
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .cell_values(heatmap.CellValues().unit("reqps"))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmaps.HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .exponent(0.5)
            .fill("blue")
            .steps(64)
        )
        .mode(common.TooltipDisplayMode.SINGLE)
        .show_legend()
    )


def _last() -> options.ReduceDataOptions:
    return options.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _stat(mode: common.BigValueTextMode) -> stat.Panel:
    return (
        stat.Panel()
        .reduce_options(_last())
        .text_mode(mode)
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
    )


def _bars() -> bargauge.Panel:
    return (
        bargauge.Panel()
        .reduce_options(_last())
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .min(0)
    )


def _states() -> statetimeline.Panel:
    return (
        statetimeline.Panel()
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
        .fill_opacity(70)
    )


_DRAWN: dict[Kind, Callable[[], _Builder]] = {
    Kind.LINES: _lines,
    Kind.STACKED: _stacked,
    Kind.HEATMAP: _heatmap,
    Kind.STAT: lambda: _stat(common.BigValueTextMode.AUTO),
    Kind.NAMES: lambda: _stat(common.BigValueTextMode.NAME),
    Kind.BARS: _bars,
    Kind.STATES: _states,
}


def _thresholds(steps: tuple[Step, ...]) -> builders.ThresholdsConfig:
    return (
        builders.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=step.value, color=step.colour) for step in steps])
    )


def _words(words: tuple[Word, ...]) -> models.ValueMap:
    return models.ValueMap(
        options={
            str(word.value): models.ValueMappingResult(text=word.text, color=word.colour, index=at)
            for at, word in enumerate(words)
        }
    )
