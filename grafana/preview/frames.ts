// How do series of Prometheus become data frames, as Grafana's data source makes them?
import { type DataFrame, type Field, FieldType, type FieldConfig } from '@grafana/data';
import type { Series } from './prometheus';
import type { Target } from './types';

/** One frame per series; the name is what the legend format makes of its labels. */
export function seriesFrames(target: Target, found: Series[], step?: number): DataFrame[] {
  return found.map((series) => ({
    refId: target.refId,
    length: series.times.length,
    fields: [
      field('Time', FieldType.time, series.times, step ? { interval: step } : {}),
      { ...field('Value', FieldType.number, series.values, named(target, series, found.length)), labels: plain(series) },
    ],
  }));
}

/** One frame with a column per label; the column of values bears the query's letter where there are several queries. */
export function tableFrame(target: Target, found: Series[], queries: number): DataFrame {
  const labels = [...new Set(found.flatMap((series) => Object.keys(series.labels)))].sort();
  const rows = found.flatMap((series) => series.times.map((time, i) => ({ series, time, value: series.values[i] })));
  const column = (label: string) => rows.map((row) => row.series.labels[label] ?? '');
  return {
    refId: target.refId,
    length: rows.length,
    fields: [
      field('Time', FieldType.time, rows.map((row) => row.time)),
      ...labels.map((label) => field(label, FieldType.string, column(label), { filterable: true })),
      field(queries > 1 ? `Value #${target.refId}` : 'Value', FieldType.number, rows.map((row) => row.value)),
    ],
  };
}

/** The frame with nulls where samples are missing, so that no line is drawn over a gap; the panels of Grafana's server do so. */
export function withGaps(frame: DataFrame, step: number): DataFrame {
  const times: number[] = frame.fields.find((field) => field.type === FieldType.time)?.values ?? [];
  const gaps = times.flatMap((time, i) => (times[i + 1] - time > step ? [i + 1] : []));
  const filled = (field: Field) => gaps.toReversed().reduce(
    (values, i) => values.toSpliced(i, 0, field.type === FieldType.time ? times[i - 1] + step : null),
    field.values,
  );
  return { ...frame, length: frame.length + gaps.length, fields: frame.fields.map((field) => ({ ...field, values: filled(field) })) };
}

function field(name: string, type: FieldType, values: unknown[], config: FieldConfig = {}): Field {
  return { name, type, values: values as any[], config };
}

function named(target: Target, series: Series, count: number): FieldConfig {
  const name = legend(target, series, count);
  return name ? { displayNameFromDS: name } : {};
}

function legend(target: Target, series: Series, count: number): string {
  const format = target.legendFormat ?? '';
  if (format === '__auto') {
    return count === 1 && Object.keys(series.labels).length === 0 ? target.expr : '';
  }
  return format ? format.replace(/{{\s*(.+?)\s*}}/g, (_, label) => series.labels[label] ?? '') : verbose(series, target);
}

function verbose(series: Series, target: Target): string {
  const { __name__: name = '', ...labels } = series.labels;
  const pairs = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
  return pairs.length ? `${name}{${pairs.join(', ')}}` : name || target.expr;
}

function plain(series: Series): Record<string, string> {
  return Object.fromEntries(Object.entries(series.labels).filter(([label]) => label !== '__name__'));
}
