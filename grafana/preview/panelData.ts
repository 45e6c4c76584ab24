// What data does a panel show? Its queries' answers, transformed and with its field options applied.
import {
  type DataFrame,
  type DataTransformContext,
  type GrafanaTheme2,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
  type TransformerRegistryItem,
} from '@grafana/data';
import { firstValueFrom } from 'rxjs';
import { withFieldConfig } from './fieldConfig';
import { seriesFrames, tableFrame } from './frames';
import { intervals, stepOf } from './intervals';
import type { Prometheus } from './prometheus';
import { type Choices, interpolate, interpolateText } from './variables';
import type { Job, Panel, Target } from './types';

export interface PanelData {
  frames: DataFrame[];
  step: number;
  problem?: string;
}

standardTransformersRegistry.setInit(() => {
  const byId = new Map(Object.values(standardTransformers).map((transformer) => [transformer.id, transformer])); // some have two names
  return [...byId.values()].map(
    (transformer) => ({ ...transformer, transformation: async () => transformer }) as unknown as TransformerRegistryItem,
  );
});

export async function panelData(
  panel: Panel, width: number, job: Job, prometheus: Prometheus, choices: Choices, theme: GrafanaTheme2,
): Promise<PanelData> {
  const step = stepOf(job, panel.maxDataPoints ?? Math.floor(width), panel.interval);
  try {
    const targets = (panel.targets ?? []).filter((target) => !target.hide);
    const answers = await Promise.all(targets.map((target) => ask(target, targets.length, step, job, prometheus, choices)));
    const frames = await transformed(panel, answers.flat(), choices);
    return { frames: withFieldConfig(panel, frames, choices, theme, job.timeZone), step };
  } catch (error) {
    return { frames: [], step, problem: String(error) };
  }
}

async function ask(
  target: Target, queries: number, step: number, job: Job, prometheus: Prometheus, choices: Choices,
): Promise<DataFrame[]> {
  const expr = interpolate(target.expr, choices, intervals(step, job));
  if (target.instant) {
    const found = await prometheus.query(expr, job.to);
    return target.format === 'table' ? [tableFrame(target, found, queries)] : seriesFrames(target, found);
  }
  const found = await prometheus.queryRange(expr, job.from, job.to, step);
  return target.format === 'table' ? [tableFrame(target, found, queries)] : seriesFrames(target, found, step);
}

async function transformed(panel: Panel, frames: DataFrame[], choices: Choices): Promise<DataFrame[]> {
  for (const { id } of panel.transformations ?? []) {
    if (!standardTransformersRegistry.getIfExists(id)) {
      throw new Error(`transformation ${id} is not in @grafana/data`);
    }
  }
  const context: DataTransformContext = { interpolate: (text) => interpolateText(text, choices) };
  return firstValueFrom(transformDataFrame(panel.transformations ?? [], frames, context));
}
