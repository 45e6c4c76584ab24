// How is a state timeline drawn? Grafana keeps that part in its server, so its lanes are painted here, on Grafana's chart.
import type { GrafanaTheme2, TimeRange } from '@grafana/data';
import { AxisPlacement, LegendDisplayMode, ScaleDirection, ScaleOrientation } from '@grafana/schema';
import { getTextColorForAlphaBackground, Pagination, UPlotChart, UPlotConfigBuilder, type VizLegendItem, VizLayout, VizLegend } from '@grafana/ui';
import { useMemo } from 'react';
import type uPlot from 'uplot';
import { type Band, type Lane, lanesOf } from './bands';
import { drawRegions, type Region } from './annotations';
import type { VisualizationProps } from './visualization';

const PADDING = 6;
const PAGES = 40;

interface Look {
  axisWidth?: number;
  rowHeight: number;
  fillOpacity: number;
  showValue: 'auto' | 'always' | 'never';
  alignValue: 'left' | 'center' | 'right';
  theme: GrafanaTheme2;
}

export function StateTimelinePanel({ panel, frames, step, width, height, theme, timeRange, timeZone, regions }: VisualizationProps) {
  const { rowHeight = 0.9, showValue = 'auto', alignValue = 'left', perPage = 20, legend } = panel.options ?? {};
  const all = useMemo(() => lanesOf(frames, step), [frames, step]);
  const lanes = useMemo(() => all.slice(0, perPage), [all]);
  const pages = Math.ceil(all.length / perPage);
  const fillOpacity = (panel.fieldConfig?.defaults.custom?.fillOpacity ?? 70) / 100;
  const axisWidth = panel.fieldConfig?.defaults.custom?.axisWidth;
  const look: Look = { axisWidth, rowHeight, showValue, alignValue, fillOpacity, theme };
  const config = useMemo(() => chart(lanes, look, timeRange, timeZone, regions), [lanes]);
  const placement = legend?.placement ?? 'bottom';
  return (
    <>
      <VizLayout
        width={width}
        height={pages > 1 ? height - PAGES : height}
        legend={
          legend?.showLegend === false ? null : (
            <VizLayout.Legend placement={placement} width={legend?.width}>
              <VizLegend placement={placement} displayMode={legend?.displayMode ?? LegendDisplayMode.List} items={legendItems(lanes)} />
            </VizLayout.Legend>
          )
        }
      >
        {(width, height) => <UPlotChart config={config} width={width} height={height} data={emptyData(timeRange)} />}
      </VizLayout>
      {pages > 1 && <Pagination currentPage={1} numberOfPages={pages} onNavigate={() => undefined} />}
    </>
  );
}

function emptyData({ from, to }: TimeRange): uPlot.AlignedData {
  return [[from.valueOf(), to.valueOf()], [null, null]];
}

function legendItems(lanes: Lane[]): VizLegendItem[] {
  const shown = new Map(lanes.flatMap(({ bands }) => bands.map(({ text, color }) => [text, color] as const)));
  return [...shown].map(([label, color]) => ({ label, color, yAxis: 1 }));
}

function chart(lanes: Lane[], look: Look, timeRange: TimeRange, timeZone: string, regions: Region[]): UPlotConfigBuilder {
  const builder = new UPlotConfigBuilder(timeZone);
  const { theme } = look;
  const middles = lanes.map((_, i) => i + 0.5);
  builder.addScale({
    scaleKey: 'x',
    isTime: true,
    orientation: ScaleOrientation.Horizontal,
    direction: ScaleDirection.Right,
    range: () => [timeRange.from.valueOf(), timeRange.to.valueOf()],
  });
  builder.addScale({
    scaleKey: 'y',
    orientation: ScaleOrientation.Vertical,
    direction: ScaleDirection.Down,
    range: () => [0, Math.max(1, lanes.length)],
  });
  builder.addAxis({ scaleKey: 'x', isTime: true, placement: AxisPlacement.Bottom, timeZone, theme, grid: { show: true } });
  builder.addAxis({
    scaleKey: 'y',
    placement: AxisPlacement.Left,
    theme,
    size: look.axisWidth,
    splits: () => middles,
    values: () => lanes.map(({ name }) => name),
    grid: { show: false },
    ticks: { show: false },
    gap: 15,
  });
  builder.addSeries({ scaleKey: 'y', theme, pathBuilder: () => null, show: true });
  builder.setPrepData(() => emptyData(timeRange));
  builder.addHook('draw', (u) => {
    lanes.forEach(({ bands }, i) => bands.forEach((band) => paint(u, band, i, look)));
    drawRegions(u, regions);
  });
  return builder;
}

function paint(u: uPlot, band: Band, lane: number, look: Look): void {
  const { ctx, bbox } = u;
  const [from, to] = [band.from, band.to].map((time) => u.valToPos(time, 'x', true));
  const [left, right] = [Math.max(from, bbox.left), Math.min(to, bbox.left + bbox.width)];
  const [top, bottom] = [lane, lane + 1].map((y) => u.valToPos(y, 'y', true));
  const height = (bottom - top) * look.rowHeight;
  if (right <= left) {
    return;
  }
  ctx.save();
  ctx.globalAlpha = look.fillOpacity;
  ctx.fillStyle = band.color;
  ctx.fillRect(left, (top + bottom - height) / 2, right - left, height);
  ctx.globalAlpha = 1;
  write(ctx, band, left, right, (top + bottom) / 2, look);
  ctx.restore();
}

function write(ctx: CanvasRenderingContext2D, { text, color }: Band, left: number, right: number, middle: number, look: Look): void {
  const padding = PADDING * devicePixelRatio;
  ctx.font = `${12 * devicePixelRatio}px ${look.theme.typography.fontFamily}`;
  const fits = ctx.measureText(text).width + 2 * padding <= right - left;
  if (look.showValue === 'never' || (look.showValue === 'auto' && !fits)) {
    return;
  }
  ctx.fillStyle = getTextColorForAlphaBackground(color, look.theme.isDark);
  ctx.textBaseline = 'middle';
  ctx.textAlign = look.alignValue;
  const x = { left: left + padding, center: (left + right) / 2, right: right - padding }[look.alignValue];
  ctx.fillText(text, x, middle);
}
