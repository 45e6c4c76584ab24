// What stands above the panels? The dashboard's name, its variables and the range of time.
import { dateTimeFormat, type GrafanaTheme2 } from '@grafana/data';
import { Icon, ToolbarButton } from '@grafana/ui';
import type { Job } from './types';
import { asText, type Choices, type Chosen } from './variables';

export function Header({ job, choices, theme }: { job: Job; choices: Choices; theme: GrafanaTheme2 }) {
  const shown = [...choices.values()].filter(({ variable }) => variable.hide !== 2);
  return (
    <header>
      <div style={{ display: 'flex', alignItems: 'center', gap: 8, height: 40 }}>
        <span style={{ ...theme.typography.h4, margin: 0, flex: 1 }}>{job.dashboard.title}</span>
        <ToolbarButton icon="clock-nine" variant="canvas">{rangeText(job)}</ToolbarButton>
      </div>
      <div style={{ display: 'flex', flexWrap: 'wrap', gap: 8, padding: '4px 0 12px' }}>
        {shown.map((choice) => <Selection key={choice.variable.name} choice={choice} theme={theme} />)}
      </div>
    </header>
  );
}

function rangeText({ from, to, timeZone }: Job): string {
  const format = 'YYYY-MM-DD HH:mm:ss';
  return `${dateTimeFormat(from, { format, timeZone })} to ${dateTimeFormat(to, { format: 'HH:mm:ss', timeZone })}`;
}

function Selection({ choice, theme }: { choice: Chosen; theme: GrafanaTheme2 }) {
  const { variable } = choice;
  const box = { display: 'flex', alignItems: 'center', height: 32, padding: '0 8px', border: `1px solid ${theme.components.input.borderColor}` };
  return (
    <div style={{ display: 'flex', ...theme.typography.bodySmall }}>
      {variable.hide !== 1 && (
        <span style={{ ...box, borderRight: 0, background: theme.colors.background.secondary, fontWeight: 500 }}>
          {variable.label || variable.name}
        </span>
      )}
      <span style={{ ...box, gap: 8, minWidth: 60, justifyContent: 'space-between', background: theme.components.input.background }}>
        {asText(choice)} <Icon name="angle-down" />
      </span>
    </div>
  );
}
