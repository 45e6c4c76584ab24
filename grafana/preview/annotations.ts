// When did the annotations of a dashboard happen, and how are they marked on a graph?
import type { GrafanaTheme2 } from '@grafana/data';
import type uPlot from 'uplot';
import { intervals, stepOf } from './intervals';
import type { Prometheus } from './prometheus';
import { type Choices, interpolate } from './variables';
import type { Job } from './types';

export interface Region {
  name: string;
  shownOn: (panel: number) => boolean;
  color: string;
  from: number;
  to: number;
}

const BAR = 4;
/** As many as Grafana asks for in a query for annotations. */
const POINTS = 100;

/** Regions of time in which the expression of an annotation has a value above 0. */
export async function regions(job: Job, prometheus: Prometheus, choices: Choices, theme: GrafanaTheme2): Promise<Region[]> {
  const asked = (job.dashboard.annotations?.list ?? []).filter((annotation) => annotation.enable && annotation.expr);
  const found = await Promise.all(
    asked.map(async ({ name, expr, iconColor, filter, step: smallest }) => {
      const step = stepOf(job, POINTS, smallest);
      const shownOn = (panel: number) => !filter || filter.ids.includes(panel) !== Boolean(filter.exclude);
      const series = await prometheus.queryRange(interpolate(expr!, choices, intervals(step, job)), job.from, job.to, step);
      const color = theme.visualization.getColorByName(iconColor);
      return series.flatMap(({ times, values }) =>
        runs(times.filter((_, i) => values[i] > 0), step).map(([from, to]) => ({ name, shownOn, color, from, to })),
      );
    }),
  );
  return found.flat();
}

function runs(times: number[], step: number): Array<[number, number]> {
  const found: Array<[number, number]> = [];
  for (const time of times) {
    const last = found.at(-1);
    if (last && time - last[1] <= step) {
      last[1] = time;
    } else {
      found.push([time, time]);
    }
  }
  return found;
}

/** Draw the regions over a graph: dashed lines where they begin and end, a bar under the axis between. */
export function drawRegions(u: uPlot, marked: Region[]): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.lineWidth = ratio;
  for (const { color, from, to } of marked) {
    const [left, right] = [from, to].map((time) => place(u, time));
    ctx.strokeStyle = ctx.fillStyle = color;
    ctx.setLineDash([5 * ratio, 5 * ratio]);
    for (const x of left === right ? [left] : [left, right]) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.globalAlpha = 0.1;
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
    ctx.globalAlpha = 1;
    ctx.fillRect(left, bbox.top + bbox.height, Math.max(right - left, BAR * ratio), BAR * ratio);
  }
  ctx.restore();
}

function place(u: uPlot, time: number): number {
  const { left, width } = u.bbox;
  return Math.round(Math.min(left + width, Math.max(left, u.valToPos(time, 'x', true))));
}
