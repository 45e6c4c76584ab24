// How is one panel drawn? In Grafana's frame, by the component of its type.
import { dateTime, type DataFrame, type GrafanaTheme2 } from '@grafana/data';
import { Icon, PanelChrome } from '@grafana/ui';
import type { ComponentType } from 'react';
import type { Region } from './annotations';
import type { Placed } from './layout';
import type { PanelData } from './panelData';
import { StateTimelinePanel } from './stateTimeline';
import { TablePanel } from './table';
import { TextPanel } from './text';
import { TimeSeriesPanel } from './timeSeries';
import type { Job } from './types';
import { BarGaugePanel, StatPanel } from './values';
import { interpolateText } from './variables';
import type { VisualizationProps } from './visualization';

const COMPONENTS: Record<string, ComponentType<VisualizationProps>> = {
  timeseries: TimeSeriesPanel,
  'state-timeline': StateTimelinePanel,
  stat: StatPanel,
  bargauge: BarGaugePanel,
  table: TablePanel,
  text: TextPanel,
};
const NEED_NO_DATA = ['text', 'stat', 'bargauge'];

interface Props {
  placed: Placed;
  data: PanelData;
  job: Job;
  theme: GrafanaTheme2;
  regions: Region[];
}

/** Say what keeps a panel from being drawn as Grafana would draw it, if anything does. */
export function problemOf({ panel }: Placed, data: PanelData): string | undefined {
  const unknown = panel.type in COMPONENTS || panel.type === 'row' ? undefined : `panels of type ${panel.type} are not drawn here`;
  return unknown ?? data.problem;
}

export function PanelFrame(props: Props) {
  const { placed } = props;
  return (
    <div style={{ position: 'absolute', left: placed.left, top: placed.top, width: placed.width, height: placed.height }}>
      {placed.panel.type === 'row' ? <Row {...props} /> : <Framed {...props} />}
    </div>
  );
}

function Row({ placed: { panel, choices }, theme }: Props) {
  const count = panel.panels?.length ?? 0;
  return (
    <div style={{ display: 'flex', alignItems: 'center', gap: 4, height: '100%', ...theme.typography.h5, margin: 0 }}>
      <Icon name={panel.collapsed ? 'angle-right' : 'angle-down'} />
      {interpolateText(panel.title ?? '', choices)}
      {panel.collapsed && <span style={{ color: theme.colors.text.secondary }}>({count} {count === 1 ? 'panel' : 'panels'})</span>}
    </div>
  );
}

function Framed(props: Props) {
  const { placed, data } = props;
  const { panel, choices, width, height } = placed;
  return (
    <PanelChrome
      title={interpolateText(panel.title ?? '', choices)}
      description={panel.description && interpolateText(panel.description, choices)}
      width={width}
      height={height}
      padding="md"
      displayMode={panel.transparent ? 'transparent' : 'default'}
      statusMessage={problemOf(placed, data)}
      hoverHeader={!panel.title}
    >
      {(innerWidth, innerHeight) => <Content {...props} width={innerWidth} height={innerHeight} />}
    </PanelChrome>
  );
}

function Content({ placed, data, job, theme, regions, width, height }: Props & { width: number; height: number }) {
  const { panel, choices } = placed;
  const Visualization = COMPONENTS[panel.type];
  const problem = problemOf(placed, data);
  if (problem || !Visualization) {
    return <Message text={problem ?? ''} theme={theme} height={height} />;
  }
  if (!NEED_NO_DATA.includes(panel.type) && isEmpty(data.frames)) {
    return <Message text={panel.fieldConfig?.defaults.noValue ?? 'No data'} theme={theme} height={height} />;
  }
  const range = { from: dateTime(job.from), to: dateTime(job.to) };
  return (
    <Visualization
      {...{ panel, choices, width, height, theme }}
      regions={regions.filter(({ shownOn }) => shownOn(panel.id))}
      frames={data.frames}
      step={data.step}
      timeRange={{ ...range, raw: range }}
      timeZone={job.timeZone}
    />
  );
}

/** Tell whether there is nothing to show. */
export function isEmpty(frames: DataFrame[]): boolean {
  return frames.every((frame) => frame.length === 0);
}

function Message({ text, theme, height }: { text: string; theme: GrafanaTheme2; height: number }) {
  return (
    <div style={{ height, display: 'grid', placeItems: 'center', textAlign: 'center', color: theme.colors.text.secondary }}>{text}</div>
  );
}
