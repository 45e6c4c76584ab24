// What does a dashboard's JSON hold, as far as it is drawn here?
import type { DataTransformerConfig, FieldConfigSource } from '@grafana/data';

export interface Target {
  refId: string;
  expr: string;
  legendFormat?: string;
  format?: 'time_series' | 'table';
  instant?: boolean;
  hide?: boolean;
  interval?: string;
}

export interface Panel {
  id: number;
  type: string;
  title?: string;
  description?: string;
  transparent?: boolean;
  gridPos: { x: number; y: number; w: number; h: number };
  targets?: Target[];
  fieldConfig?: FieldConfigSource;
  options?: Record<string, any>;
  transformations?: DataTransformerConfig[];
  maxDataPoints?: number | null;
  interval?: string | null;
  repeat?: string;
  repeatDirection?: 'h' | 'v';
  maxPerRow?: number;
  collapsed?: boolean;
  panels?: Panel[];
}

export interface Variable {
  name: string;
  label?: string;
  type: string;
  query?: string | { query: string };
  regex?: string;
  sort?: number;
  multi?: boolean;
  includeAll?: boolean;
  allValue?: string | null;
  hide?: number;
  current?: { value?: string | string[] };
}

export interface Annotation {
  name: string;
  enable: boolean;
  expr?: string;
  iconColor: string;
  step?: string;
  filter?: { exclude?: boolean; ids: number[] };
}

export interface Dashboard {
  title: string;
  panels: Panel[];
  templating?: { list?: Variable[] };
  annotations?: { list?: Annotation[] };
  tags?: string[];
  links?: Array<{ title: string }>;
}

/** What the one who calls wants drawn; times are milliseconds since the epoch. */
export interface Job {
  dashboard: Dashboard;
  prometheus: string;
  variables: Record<string, string[]>;
  from: number;
  to: number;
  timeZone: string;
  theme: 'light' | 'dark';
  scrapeInterval: number;
}
