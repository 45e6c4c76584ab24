// How is a time series panel drawn? By Grafana's TimeSeries, with annotations on top.
import { LegendDisplayMode, type VizLegendOptions } from '@grafana/schema';
import { TimeSeries } from '@grafana/ui';
import { useMemo } from 'react';
import { drawRegions } from './annotations';
import { withGaps } from './frames';
import type { VisualizationProps } from './visualization';

const LEGEND: VizLegendOptions = { showLegend: true, displayMode: LegendDisplayMode.List, placement: 'bottom', calcs: [] };

export function TimeSeriesPanel({ panel, frames, step, width, height, timeRange, timeZone, regions }: VisualizationProps) {
  const gapped = useMemo(() => frames.map((frame) => withGaps(frame, step)), [frames, step]);
  return (
    <TimeSeries
      frames={gapped}
      width={width}
      height={height}
      timeRange={timeRange}
      timeZone={timeZone}
      legend={{ ...LEGEND, ...panel.options?.legend }}
    >
      {(builder) => {
        builder.addHook('draw', (u) => drawRegions(u, regions));
        return null;
      }}
    </TimeSeries>
  );
}
