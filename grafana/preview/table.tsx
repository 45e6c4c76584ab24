// How is a table drawn? By Grafana's own table, the one that its table panel uses.
import { TableNG } from '@grafana/ui/unstable';
import { completed } from './fieldConfig';
import type { VisualizationProps } from './visualization';

export function TablePanel({ panel, frames, width, height, timeRange }: VisualizationProps) {
  const options = panel.options ?? {};
  return (
    <TableNG
      data={frames[options.frameIndex ?? 0] ?? frames[0]}
      width={width}
      height={height}
      noHeader={options.showHeader === false}
      cellHeight={options.cellHeight}
      sortBy={options.sortBy}
      enablePagination={options.enablePagination}
      frozenColumns={options.frozenColumns?.left}
      noValue={panel.fieldConfig?.defaults.noValue}
      fieldConfig={completed(panel)}
      timeRange={timeRange}
      enableVirtualization={false}
      structureRev={1}
    />
  );
}
