// How far apart are the points that are asked for, and what do queries know of it?
import { dateTime, rangeUtil } from '@grafana/data';
import type { Job } from './types';

/** The step in ms for at most so many points, never smaller than the one given (such as 15s) or a scrape. */
export function stepOf(job: Job, points: number, smallest?: string | null): number {
  const range = { from: dateTime(job.from), to: dateTime(job.to) };
  return rangeUtil.calculateInterval({ ...range, raw: range }, points, smallest || `${job.scrapeInterval}s`).intervalMs;
}

/** What $__interval and its like stand for. */
export function intervals(step: number, job: Job): Record<string, string> {
  const scrape = job.scrapeInterval * 1000;
  const seconds = Math.round((job.to - job.from) / 1000);
  return {
    __interval: `${step}ms`,
    __interval_ms: String(step),
    __rate_interval: `${Math.max(step + scrape, 4 * scrape)}ms`,
    __range: `${seconds}s`,
    __range_s: String(seconds),
    __range_ms: String(seconds * 1000),
  };
}
