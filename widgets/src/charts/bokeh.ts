/**
 * BokehJS as the kernel's own Bokeh ships it: fetched once per version and browser, evaluated privately.
 *
 * Bundling it would tie one version to all kernels.
 */

import { element } from '../page/dom.js';
import type { BokehDocument, FigureView, BokehView, BokehApi } from './bokeh_api.js';
import { patchBokeh, slowReason } from './bokeh_patches.js';

/** Bokeh's names for its charts. */
export const CHART = /^(Figure|Plot)$/;

// Shared by the bundles of the cell and of the sidebar.
const CACHE = Symbol.for('kernel_monitor.bokeh');

function cache(): Map<string, Promise<BokehApi>> {
  const page = globalThis as { [CACHE]?: Map<string, Promise<BokehApi>> };
  return (page[CACHE] ??= new Map<string, Promise<BokehApi>>());
}

/** The browser's cache for the files of the last versions, so that a busy kernel is not asked for them. */
const KEPT = 'kernel_monitor';
const KEPT_VERSIONS = 3;

/**
 * The BokehJS of `version`, from this page or from the browser's cache, or else by `fetch`.
 *
 * @throws Error when it cannot be fetched, does not run, or is of another version.
 */
export function loadBokeh(
  version: string,
  fetch: () => Promise<{ version: string; text: string }>
): Promise<BokehApi> {
  const known = cache();
  let loading = known.get(version);
  if (loading === undefined) {
    loading = loadOnce(version, fetch);
    // A failure is reported to those who wait now; the next caller tries again.
    loading.catch(() => known.delete(version));
    known.set(version, loading);
  }
  return loading;
}

/** Use the BokehJS that this page has already started, as the file of a report has. */
export function useBokeh(bokeh: BokehApi): void {
  patchBokeh(bokeh);
  cache().set(bokeh.version, Promise.resolve(bokeh));
}

async function loadOnce(
  version: string,
  fetch: () => Promise<{ version: string; text: string }>
): Promise<BokehApi> {
  const files = await openFiles();
  // A key in the browser's cache, which must be an address of this site; the server is never asked for it.
  const address = `/kernel_monitor/bokeh-${version}.js`;
  const kept = await files?.match(address).catch(() => undefined);
  if (kept !== undefined) {
    try {
      return await started(version, await kept.text());
    } catch (error) {
      console.warn('kernel_monitor: the BokehJS that the browser kept does not run.', error);
      await files?.delete(address);
    }
  }
  const { text } = await fetch();
  const bokeh = await started(version, text);
  if (files !== null) {
    keep(files, address, text).catch((error: unknown) => {
      console.debug('kernel_monitor: the browser does not keep BokehJS.', error);
    });
  }
  return bokeh;
}

/** Null where the browser has no such cache: not on plain HTTP (but for this machine), nor in some editors. */
async function openFiles(): Promise<Cache | null> {
  try {
    return await globalThis.caches.open(KEPT);
  } catch {
    return null;
  }
}

async function keep(files: Cache, address: string, text: string): Promise<void> {
  await files.put(address, new Response(text));
  const all = await files.keys();
  await Promise.all(all.slice(0, -KEPT_VERSIONS).map(file => files.delete(file)));
}

async function started(version: string, text: string): Promise<BokehApi> {
  const bokeh = await evaluate(text);
  if (bokeh.version !== version) {
    throw new Error(`The kernel announced BokehJS ${version} and sent ${bokeh.version}.`);
  }
  patchBokeh(bokeh);
  return bokeh;
}

/** Run BokehJS with a `this` of its own, so that a `window.Bokeh` of the page stays what it is. */
async function evaluate(text: string): Promise<BokehApi> {
  const code = `const box={};(function(){${text}\n}).call(box);export default box.Bokeh;`;
  const url = URL.createObjectURL(new Blob([code], { type: 'text/javascript' }));
  try {
    const module = (await import(/* webpackIgnore: true */ /* @vite-ignore */ url)) as {
      default: BokehApi;
    };
    return module.default;
  } finally {
    URL.revokeObjectURL(url);
  }
}

interface Embedded {
  readonly document: BokehDocument;
  dispose(): void;
}

const shownFigures = new WeakMap<BokehDocument, readonly FigureView[]>();

/** The charts of a document that is embedded, as they stand on the page. */
export function figuresOf(document: BokehDocument): readonly FigureView[] {
  return shownFigures.get(document) ?? [];
}

function* figuresIn(views: Iterable<BokehView>): Iterable<FigureView> {
  for (const view of views) {
    if (CHART.test(view.model.type ?? '')) {
      // Other versions may have no pauses; all that is lost is that charts out of sight rest.
      if ('pause' in view && 'unpause' in view && 'el' in view) {
        yield view as unknown as FigureView;
      }
    } else {
      yield* figuresIn(view.child_views ?? []);
    }
  }
}

/** Show a `json_item` in `target`, which must be attached to the page; below it why it is slow, if it is. */
export async function embed(
  bokeh: BokehApi,
  item: unknown,
  target: HTMLElement
): Promise<Embedded> {
  const views = await bokeh.embed.embed_item(item, target);
  const document = views.roots[0]?.model.document;
  if (!document) {
    throw new Error('The chart document is empty.');
  }
  const reason = slowReason(bokeh);
  if (reason !== null) {
    target.append(element('div', 'km-slow', reason));
  }
  shownFigures.set(document, [...figuresIn(views.roots)]);
  return {
    document,
    dispose: () => {
      document.clear();
      // BokehJS keeps every document of a page for ever.
      const index = bokeh.documents.indexOf(document);
      if (index >= 0) {
        bokeh.documents.splice(index, 1);
      }
    }
  };
}
