// How do a panel's field options reach the fields? Through Grafana's own applyFieldOverrides, with the options it knows.
import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  type DataFrame,
  type Field,
  FieldColorModeId,
  type FieldConfigPropertyItem,
  type FieldConfigSource,
  FieldType,
  type GrafanaTheme2,
  Registry,
  ThresholdsMode,
} from '@grafana/data';
import { interpolateText, type Choices } from './variables';
import type { Panel } from './types';

const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'thresholds', 'mappings', 'links', 'color', 'filterable'];
const ONLY_NUMBERS = ['min', 'max', 'decimals', 'thresholds'];
/** What the time series panel sets where its JSON says nothing. */
const GRAPH_DEFAULTS = { lineWidth: 1, fillOpacity: 0, pointSize: 5, showPoints: 'auto', drawStyle: 'line' };
const TIMELINE_DEFAULTS = { lineWidth: 0, fillOpacity: 70 };

export function withFieldConfig(
  panel: Panel, frames: DataFrame[], choices: Choices, theme: GrafanaTheme2, timeZone: string,
): DataFrame[] {
  const fieldConfig = completed(panel);
  const applied = applyFieldOverrides({
    data: frames,
    fieldConfig,
    fieldConfigRegistry: registry(fieldConfig),
    replaceVariables: (text) => interpolateText(text, choices),
    theme,
    timeZone,
  });
  cacheFieldDisplayNames(applied); // tables take the names from there
  return applied;
}

/** The panel's field options with the defaults that Grafana adds when it loads a dashboard. */
export function completed(panel: Panel): FieldConfigSource {
  const { defaults = {}, overrides = [] } = panel.fieldConfig ?? {};
  const custom = panel.type === 'timeseries' ? GRAPH_DEFAULTS : panel.type === 'state-timeline' ? TIMELINE_DEFAULTS : {};
  const thresholds = defaults.thresholds ?? {
    mode: ThresholdsMode.Absolute,
    steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }],
  };
  const color = defaults.color ?? {
    mode: panel.type === 'timeseries' ? FieldColorModeId.PaletteClassic : FieldColorModeId.Thresholds,
  };
  const steps = thresholds.steps.map((step) => ({ ...step, value: step.value ?? -Infinity }));
  return {
    defaults: { ...defaults, color, thresholds: { ...thresholds, steps }, custom: { ...custom, ...defaults.custom } },
    overrides,
  };
}

function registry({ defaults, overrides }: FieldConfigSource): Registry<FieldConfigPropertyItem> {
  const overridden = overrides.flatMap((rule) => rule.properties.map((property) => property.id));
  const custom = Object.keys(defaults.custom ?? {}).map((name) => `custom.${name}`);
  return new Registry(() => [...new Set([...STANDARD, ...custom, ...overridden])].map(item));
}

function item(id: string): FieldConfigPropertyItem {
  const isCustom = id.startsWith('custom.');
  return {
    id,
    name: id,
    path: isCustom ? id.slice('custom.'.length) : id,
    isCustom,
    process: (value: unknown) => value,
    shouldApply: (field: Field) => !ONLY_NUMBERS.includes(id) || field.type === FieldType.number,
    override: () => null,
    editor: () => null,
  } as unknown as FieldConfigPropertyItem;
}
