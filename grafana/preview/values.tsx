// How are panels of single values drawn? Stat by BigValue, bar gauge by BarGauge, both repeated by VizRepeater.
import {
  type DisplayValueAlignmentFactors,
  type FieldDisplay,
  getDisplayValueAlignmentFactors,
  getFieldDisplayValues,
  VizOrientation,
} from '@grafana/data';
import { BarGauge, BigValue, BigValueColorMode, BigValueGraphMode, BigValueTextMode, VizRepeater } from '@grafana/ui';
import { completed } from './fieldConfig';
import type { VisualizationProps } from './visualization';
import { interpolateText } from './variables';

const REDUCE = { calcs: ['lastNotNull'], values: false };

export function StatPanel(props: VisualizationProps) {
  const { panel, frames, width, height, theme, timeRange } = props;
  const options = panel.options ?? {};
  const sparkline = (options.graphMode ?? BigValueGraphMode.Area) !== BigValueGraphMode.None;
  const named = panel.fieldConfig?.defaults.displayName || !panel.title;
  const auto = options.textMode ?? BigValueTextMode.Auto;
  return (
    <VizRepeater<FieldDisplay, DisplayValueAlignmentFactors>
      getValues={() => fieldDisplays(props, sparkline)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, width, height, count, alignmentFactors }) => (
        <BigValue
          value={value.display}
          count={count}
          sparkline={value.sparkline && { ...value.sparkline, timeRange }}
          colorMode={options.colorMode ?? BigValueColorMode.Value}
          graphMode={options.graphMode ?? BigValueGraphMode.Area}
          justifyMode={options.justifyMode}
          textMode={auto === BigValueTextMode.Auto && named ? BigValueTextMode.ValueAndName : auto}
          text={options.text}
          width={width}
          height={height}
          theme={theme}
          alignmentFactors={alignmentFactors}
          disableWideLayout={!(options.wideLayout ?? true)}
        />
      )}
      source={frames}
      renderCounter={0}
      width={width}
      height={height}
      itemSpacing={3}
      autoGrid
      orientation={options.orientation ?? VizOrientation.Auto}
    />
  );
}

export function BarGaugePanel(props: VisualizationProps) {
  const { panel, frames, width, height, theme } = props;
  const options = panel.options ?? {};
  const lcd = options.displayMode === 'lcd';
  return (
    <VizRepeater<FieldDisplay, DisplayValueAlignmentFactors>
      getValues={() => fieldDisplays(props, false)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, width, height, orientation, alignmentFactors, count }) => (
        <BarGauge
          value={value.display}
          field={value.field}
          display={value.view?.getFieldDisplayProcessor(value.colIndex!)}
          width={width}
          height={height}
          orientation={orientation}
          theme={theme}
          text={options.text}
          itemSpacing={lcd ? 2 : 10}
          lcdCellWidth={8}
          displayMode={options.displayMode ?? 'gradient'}
          showUnfilled={options.showUnfilled ?? true}
          valueDisplayMode={options.valueMode ?? 'color'}
          namePlacement={options.namePlacement ?? 'auto'}
          alignmentFactors={count > 1 ? alignmentFactors : undefined}
        />
      )}
      source={frames}
      renderCounter={0}
      width={width}
      height={height}
      itemSpacing={lcd ? 2 : 10}
      minVizWidth={options.minVizWidth ?? 8}
      minVizHeight={options.minVizHeight ?? 16}
      maxVizHeight={options.sizing === 'manual' ? options.maxVizHeight : 300}
      orientation={options.orientation ?? VizOrientation.Auto}
    />
  );
}

function fieldDisplays({ panel, frames, theme, timeZone, choices }: VisualizationProps, sparkline: boolean): FieldDisplay[] {
  return getFieldDisplayValues({
    fieldConfig: completed(panel),
    reduceOptions: { ...REDUCE, ...panel.options?.reduceOptions },
    replaceVariables: (text) => interpolateText(text, choices),
    theme,
    data: frames,
    sparkline,
    timeZone,
  });
}
