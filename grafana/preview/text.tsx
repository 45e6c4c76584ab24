// How is a text panel drawn? Its Markdown through Grafana's own renderer, which cleans it.
import { renderTextPanelMarkdown } from '@grafana/data';
import type { VisualizationProps } from './visualization';
import { interpolateText } from './variables';

export function TextPanel({ panel, choices, height }: VisualizationProps) {
  const html = renderTextPanelMarkdown(interpolateText(panel.options?.content ?? '', choices));
  return <div className="markdown-html" style={{ height, overflow: 'hidden' }} dangerouslySetInnerHTML={{ __html: html }} />;
}
