// What is every visualization given?
import type { DataFrame, GrafanaTheme2, TimeRange } from '@grafana/data';
import type { Region } from './annotations';
import type { Panel } from './types';
import type { Choices } from './variables';

export interface VisualizationProps {
  panel: Panel;
  frames: DataFrame[];
  step: number;
  width: number;
  height: number;
  theme: GrafanaTheme2;
  timeRange: TimeRange;
  timeZone: string;
  regions: Region[];
  choices: Choices;
}
