// How does a dashboard look? Read it, ask Prometheus for its data, draw it, and say when that is done.
import { createTheme, EventBusSrv, type GrafanaTheme2, ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelContextProvider, PortalContainer } from '@grafana/ui';
import { flushSync } from 'react-dom';
import { createRoot, type Root } from 'react-dom/client';
import { type Region, regions } from './annotations';
import { Header } from './header';
import { cuts, heightOf, layout, type Placed } from './layout';
import { type PanelData, panelData } from './panelData';
import { isEmpty, PanelFrame, problemOf } from './panelFrame';
import { Prometheus } from './prometheus';
import type { Job } from './types';
import { type Choices, choose } from './variables';

declare global {
  interface Window {
    /** Set when all is drawn: how high the page is and may be cut off, and which panels are not as they should be. */
    drawn?: { height: number; cuts: number[]; problems: string[]; empty: string[] };
  }
}

const PADDING = 16;
const MARGIN = 4;
const FONTS = ['12px Inter', '500 12px Inter', '12px "Roboto Mono"'];
const SETTLE = 1500;

interface Drawing {
  job: Job;
  theme: GrafanaTheme2;
  choices: Choices;
  placed: Placed[];
  data: PanelData[];
  marked: Region[];
}

async function main(): Promise<void> {
  const job: Job = await (await fetch('job.json')).json();
  const theme = createTheme({ colors: { mode: job.theme } });
  const prometheus = new Prometheus(job.prometheus);
  const choices = await choose(job, prometheus);
  const placed = layout(job.dashboard.panels, choices, window.innerWidth - 2 * PADDING);
  const data = await Promise.all(
    placed.map(({ panel, width, choices }) => panelData(panel, width, job, prometheus, choices, theme)),
  );
  const marked = await regions(job, prometheus, choices, theme);
  const root = createRoot(document.getElementById('root')!);
  await loadFonts(root, theme);
  root.render(<Page {...{ job, theme, choices, placed, data, marked }} />);
  await new Promise((resolve) => setTimeout(resolve, SETTLE)); // icons are fetched, tables and legends measure themselves
  window.drawn = report(placed, data);
}

/** Charts measure their texts when they are drawn, so the fonts have to be there first. */
async function loadFonts(root: Root, theme: GrafanaTheme2): Promise<void> {
  flushSync(() => root.render(<ThemeContext.Provider value={theme}><GlobalStyles /></ThemeContext.Provider>));
  await Promise.all(FONTS.map((font) => document.fonts.load(font)));
}

function report(placed: Placed[], data: PanelData[]) {
  const name = ({ panel }: Placed) => `${panel.title || panel.id} (${panel.type})`;
  const problems = placed.flatMap((one, i) => { const problem = problemOf(one, data[i]); return problem ? [`${name(one)}: ${problem}`] : []; });
  const empty = placed.filter(({ panel }, i) => panel.targets?.length && isEmpty(data[i].frames)).map(name);
  const height = document.documentElement.scrollHeight;
  const above = height - heightOf(placed) - PADDING; // what is free below all of it
  return { height, cuts: cuts(placed).map((cut) => Math.ceil(cut + above) + MARGIN), problems, empty };
}

function Page({ job, theme, choices, placed, data, marked }: Drawing) {
  const eventBus = new EventBusSrv();
  const context = { eventsScope: 'preview', eventBus, canAddAnnotations: () => false };
  return (
    <ThemeContext.Provider value={theme}>
      <PanelContextProvider value={context}>
        <GlobalStyles />
        <div style={{ padding: PADDING, background: theme.colors.background.canvas }}>
          <Header job={job} choices={choices} theme={theme} />
          <div style={{ position: 'relative', height: heightOf(placed) }}>
            {placed.map((one, i) => (
              <PanelFrame key={i} placed={one} data={data[i]} job={job} theme={theme} regions={marked} />
            ))}
          </div>
        </div>
        <PortalContainer />
      </PanelContextProvider>
    </ThemeContext.Provider>
  );
}

main().catch((error) => {
  window.drawn = { height: 0, cuts: [], problems: [String(error)], empty: [] };
});
