// Where does each panel stand? On Grafana's grid of 24 columns, repeated ones beside or below each other.
import type { Choices } from './variables';
import type { Panel } from './types';

export interface Placed {
  panel: Panel;
  choices: Choices;
  left: number;
  top: number;
  width: number;
  height: number;
}

const COLUMNS = 24;
const CELL = 30;
const GAP = 8;

/** Panels in pixels, with the variables that hold for each. */
export function layout(panels: Panel[], choices: Choices, width: number): Placed[] {
  const column = (width - GAP * (COLUMNS - 1)) / COLUMNS;
  return compacted(repeated(panels, choices)).map(({ panel, choices }) => {
    const { x, y, w, h } = panel.gridPos;
    return {
      panel,
      choices,
      left: x * (column + GAP),
      top: y * (CELL + GAP),
      width: w * (column + GAP) - GAP,
      height: h * (CELL + GAP) - GAP,
    };
  });
}

/** How far down the lowest panel reaches. */
export function heightOf(placed: Placed[]): number {
  return Math.max(0, ...placed.map(({ top, height }) => top + height));
}

/** Where the picture may be cut off: below panels, but through none, and not below the title of a row. */
export function cuts(placed: Placed[]): number[] {
  const bottoms = placed.filter(({ panel }) => panel.type !== 'row').map(({ top, height }) => top + height);
  return bottoms.filter((cut) => placed.every(({ top, height }) => cut <= top || cut >= top + height)).toSorted((a, b) => a - b);
}

type Scoped = Pick<Placed, 'panel' | 'choices'>;

function repeated(panels: Panel[], choices: Choices): Scoped[] {
  let pushed = 0;
  return panels.flatMap((original) => {
    const panel = moved(original, pushed);
    if (!panel.repeat || !choices.has(panel.repeat)) {
      return [{ panel, choices }];
    }
    if (panel.type === 'row') {
      throw new Error(`${panel.title}: rows that repeat are not drawn here`);
    }
    const copies = copiesOf(panel, choices);
    pushed += Math.max(...copies.map(({ panel: copy }) => copy.gridPos.y)) - panel.gridPos.y;
    return copies;
  });
}

function copiesOf(panel: Panel, choices: Choices): Scoped[] {
  const choice = choices.get(panel.repeat!)!;
  const perRow = panel.repeatDirection === 'v' ? 1 : Math.min(panel.maxPerRow ?? 4, choice.values.length);
  const w = panel.repeatDirection === 'v' ? panel.gridPos.w : COLUMNS / perRow;
  return choice.values.map((value, i) => ({
    panel: {
      ...panel,
      gridPos: { ...panel.gridPos, x: (i % perRow) * w, y: panel.gridPos.y + Math.floor(i / perRow) * panel.gridPos.h, w },
    },
    choices: new Map(choices).set(panel.repeat!, { ...choice, values: [value], all: false }),
  }));
}

/** Panels move up until they meet one above, as on Grafana's grid; collapsed rows leave room. */
function compacted(scoped: Scoped[]): Scoped[] {
  const floors = new Array<number>(COLUMNS).fill(0);
  const inOrder = scoped.toSorted((a, b) => a.panel.gridPos.y - b.panel.gridPos.y || a.panel.gridPos.x - b.panel.gridPos.x);
  return inOrder.map(({ panel, choices }) => {
    const { x, w, h } = panel.gridPos;
    const y = Math.max(...floors.slice(x, x + w));
    floors.fill(y + h, x, x + w);
    return { panel: { ...panel, gridPos: { ...panel.gridPos, y } }, choices };
  });
}

function moved(panel: Panel, down: number): Panel {
  return { ...panel, gridPos: { ...panel.gridPos, y: panel.gridPos.y + down } };
}
