// What does Prometheus answer?
export type Labels = Record<string, string>;

export interface Series {
  labels: Labels;
  /** Milliseconds since the epoch. */
  times: number[];
  values: number[];
}

type Sample = [number, string];

interface Result {
  metric: Labels;
  value?: Sample;
  values?: Sample[];
}

export class Prometheus {
  constructor(private readonly url: string) {}

  /** The value at one time (ms). */
  async query(expr: string, time: number): Promise<Series[]> {
    return series(await this.ask('query', { query: expr, time: String(time / 1000) }));
  }

  /** The values of a range, on multiples of the step as Grafana asks for them; all in ms. */
  async queryRange(expr: string, from: number, to: number, step: number): Promise<Series[]> {
    const [start, end] = [from, to].map((time) => String((Math.floor(time / step) * step) / 1000));
    return series(await this.ask('query_range', { query: expr, start, end, step: String(step / 1000) }));
  }

  /** The sorted values of a label in a range, of all series or of those that a selector names. */
  async labelValues(label: string, selector: string | undefined, from: number, to: number): Promise<string[]> {
    const range = { start: String(from / 1000), end: String(to / 1000) };
    const match: Record<string, string> = selector ? { 'match[]': selector } : {};
    return this.ask(`label/${label}/values`, { ...range, ...match });
  }

  private async ask(path: string, parameters: Record<string, string>): Promise<any> {
    const answer = await fetch(`${this.url}/api/v1/${path}?${new URLSearchParams(parameters)}`);
    const body = await answer.json();
    if (body.status !== 'success') {
      throw new Error(`${body.errorType}: ${body.error} (${parameters.query ?? path})`);
    }
    return body.data;
  }
}

function series(data: { resultType: string; result: any }): Series[] {
  if (data.resultType === 'scalar') {
    return [one({ metric: {}, value: data.result })];
  }
  return (data.result as Result[]).map(one);
}

function one(result: Result): Series {
  const samples = result.values ?? [result.value!];
  return {
    labels: result.metric,
    times: samples.map(([time]) => time * 1000),
    values: samples.map(([, value]) => number(value)),
  };
}

function number(text: string): number {
  return text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text);
}
