// Bundles the preview and what it imports of Grafana into dist/, with icons and fonts where Grafana looks for them.
import { build } from 'esbuild';
import { cp, rm, writeFile } from 'node:fs/promises';

const FONTS = {
  'inter/inter-latin-400-normal': 'inter/Inter-Regular',
  'inter/inter-latin-500-normal': 'inter/Inter-Medium',
  'roboto-mono/roboto-mono-latin-400-normal': 'roboto/L0xTDF4xlVMF-BfR8bXMIhJHg45mwgGEFl0_3vrtSM1J-gEPT5Ese6hmHSh0mQ',
};

const PAGE = `<!doctype html>
<meta charset="utf-8">
<title>Dashboard preview</title>
<link rel="stylesheet" href="preview.css">
<div id="root"></div>
<script type="module" src="preview.js"></script>
`;

await rm('dist', { recursive: true, force: true });
await build({
  entryPoints: ['preview.tsx'],
  outdir: 'dist',
  bundle: true,
  format: 'esm',
  splitting: true,
  minify: true,
  jsx: 'automatic',
  target: 'es2022',
  loader: { '.woff2': 'file', '.woff': 'file', '.svg': 'dataurl', '.ttf': 'file' },
  define: { 'process.env.NODE_ENV': '"production"' },
  logLevel: 'warning',
});
await writeFile('dist/index.html', PAGE);
await cp('node_modules/@grafana/ui/dist/public/img', 'dist/public/build/img', { recursive: true });
for (const [from, to] of Object.entries(FONTS)) {
  const file = from.replace('/', '/files/');
  await cp(`node_modules/@fontsource/${file}.woff2`, `dist/public/fonts/${to}.woff2`);
}
