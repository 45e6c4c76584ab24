// What does a state timeline show? For each field a lane of bands, one for each time in which its value is the same.
import { type DataFrame, type Field, FieldType, formattedValueToString, getFieldDisplayName } from '@grafana/data';

export interface Band {
  from: number;
  to: number;
  text: string;
  color: string;
}

export interface Lane {
  name: string;
  bands: Band[];
}

/** Lanes of all fields that are not times; a band ends where the value changes, or a step after its last sample. */
export function lanesOf(frames: DataFrame[], step: number): Lane[] {
  return frames.flatMap((frame) => {
    const times = frame.fields.find((field) => field.type === FieldType.time)?.values ?? [];
    return frame.fields
      .filter((field) => field.type !== FieldType.time)
      .map((field) => ({ name: getFieldDisplayName(field, frame, frames), bands: bandsOf(field, times, step) }));
  });
}

function bandsOf(field: Field, times: number[], step: number): Band[] {
  const bands: Band[] = [];
  times.forEach((from, i) => {
    if (field.values[i] == null) {
      return;
    }
    const shown = field.display!(field.values[i]);
    const [text, color] = [formattedValueToString(shown), shown.color ?? 'gray'];
    const last = bands.at(-1);
    if (last && last.to === from && last.text === text && last.color === color) {
      last.to = endOf(times, i, step);
    } else {
      bands.push({ from, to: endOf(times, i, step), text, color });
    }
  });
  return bands;
}

function endOf(times: number[], i: number, step: number): number {
  return Math.min(times[i + 1] ?? Infinity, times[i] + step);
}
