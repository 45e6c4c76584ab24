// What do the variables of a dashboard stand for, and how do they get into queries and titles?
import type { Prometheus } from './prometheus';
import type { Job, Variable } from './types';

export interface Chosen {
  variable: Variable;
  values: string[];
  all: boolean;
}

export type Choices = Map<string, Chosen>;

const ALL = '$__all';
const REFERENCE = /\$(\w+)|\[\[(\w+?)(?::(\w+))?\]\]|\$\{(\w+)(?::(\w+))?\}/g;

/** Choose the values of all variables in their order, since one may use those before it. */
export async function choose(job: Job, prometheus: Prometheus): Promise<Choices> {
  const choices: Choices = new Map();
  for (const variable of job.dashboard.templating?.list ?? []) {
    choices.set(variable.name, await chosen(variable, job, prometheus, choices));
  }
  return choices;
}

async function chosen(variable: Variable, job: Job, prometheus: Prometheus, choices: Choices): Promise<Chosen> {
  const offered = await options(variable, job, prometheus, choices);
  const wanted = job.variables[variable.name] ?? [variable.current?.value ?? []].flat();
  const all = Boolean(variable.includeAll) && (wanted.includes(ALL) || wanted.length === 0);
  if (all) {
    return { variable, values: offered, all };
  }
  const known = wanted.filter((value) => offered.length === 0 || offered.includes(value));
  return { variable, values: known.length ? known : offered.slice(0, 1), all };
}

async function options(variable: Variable, job: Job, prometheus: Prometheus, choices: Choices): Promise<string[]> {
  const query = typeof variable.query === 'object' ? variable.query.query : variable.query ?? '';
  switch (variable.type) {
    case 'query':
      return sorted(variable, filtered(variable, await labelValues(interpolate(query, choices), job, prometheus)));
    case 'custom':
    case 'interval':
      return query.split(',').map((part) => part.trim().split(' : ').at(-1)!);
    case 'datasource':
      return ['Prometheus'];
    default:
      return query ? [query] : [];
  }
}

async function labelValues(query: string, job: Job, prometheus: Prometheus): Promise<string[]> {
  const parts = /^label_values\((?:(.+),)?\s*(\w+)\s*\)$/.exec(query.trim());
  if (!parts) {
    throw new Error(`variable query not understood: ${query}`);
  }
  return prometheus.labelValues(parts[2], parts[1]?.trim(), job.from, job.to);
}

function filtered(variable: Variable, values: string[]): string[] {
  const parts = /^\/(.*)\/(\w*)$/.exec(variable.regex ?? '');
  if (!variable.regex) {
    return values;
  }
  const regex = parts ? new RegExp(parts[1], parts[2].replace('g', '')) : new RegExp(variable.regex);
  return [...new Set(values.flatMap((value) => { const found = regex.exec(value); return found ? [found[1] ?? value] : []; }))];
}

function sorted(variable: Variable, values: string[]): string[] {
  if (!variable.sort) {
    return values;
  }
  const rising = values.toSorted((a, b) => a.localeCompare(b, undefined, { numeric: [3, 4].includes(variable.sort!) }));
  return variable.sort % 2 === 0 ? rising.toReversed() : rising;
}

/** Put the chosen values into a query; further names such as __interval are given with it. */
export function interpolate(text: string, choices: Choices, further: Record<string, string> = {}): string {
  return replaced(text, choices, further, (choice) => inQuery(choice));
}

/** Put the chosen values into what a person reads. */
export function interpolateText(text: string, choices: Choices, further: Record<string, string> = {}): string {
  return replaced(text, choices, further, asText);
}

export function asText(choice: Chosen): string {
  return choice.all ? 'All' : choice.values.join(' + ');
}

type Format = (choice: Chosen) => string;

const FORMATS: Record<string, Format> = {
  regex: ({ values }) => group(values.map((value) => value.replace(/[\\^$*+?.()|[\]{}/]/g, '\\$&'))),
  pipe: ({ values }) => values.join('|'),
  csv: ({ values }) => values.join(','),
  raw: ({ values }) => values.join(','),
  text: asText,
  queryparam: ({ variable, values }) => values.map((value) => `var-${variable.name}=${encodeURIComponent(value)}`).join('&'),
  percentencode: ({ values }) => encodeURIComponent(values.join(',')),
};

function replaced(text: string, choices: Choices, further: Record<string, string>, usual: Format): string {
  return text.replace(REFERENCE, (whole, bare, square, squareFormat, curly, curlyFormat) => {
    const name = bare ?? square ?? curly;
    const choice = choices.get(name);
    return choice ? (FORMATS[squareFormat ?? curlyFormat] ?? usual)(choice) : further[name] ?? whole;
  });
}

/** As the Prometheus data source does: a regular expression where several may be chosen, else the value itself. */
function inQuery({ variable, values, all }: Chosen): string {
  if (all && variable.allValue) {
    return variable.allValue;
  }
  if (!variable.multi && !variable.includeAll) {
    return values.join('').replace(/\\/g, '\\\\').replace(/"/g, '\\"');
  }
  return group(values.map((value) => value.replace(/\\/g, '\\\\\\\\').replace(/[$^*{}[\]'+?.()|]/g, '\\\\$&')));
}

function group(values: string[]): string {
  return values.length === 1 ? values[0] : `(${values.join('|')})`;
}
