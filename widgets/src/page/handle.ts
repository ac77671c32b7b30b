/** `el.monitor`: a dashboard's contents, for debugging and for tests in a browser. */

import type { StreamStats } from '../stream/accounts.js';
import type { BokehDocument, BokehSource, Columns, Image } from '../charts/bokeh_api.js';
import type { Feed } from '../charts/feed.js';
import type { MonitorSource } from '../stream/source.js';
import type { TilesTag } from '../charts/tiles.js';
import type { Schema } from '../stream/page_messages.js';

export interface MonitorHandle {
  readonly source: MonitorSource;
  readonly schema: Schema | null;
  /** Null until charts are shown. */
  readonly feed: Feed | null;
  /** The charts' Bokeh document. */
  readonly document: BokehDocument | null;
  readonly stats: StreamStats;
  /** Reset the counts of the stream. */
  resetStats(): void;
  /** The columns of a chart's source; null when there is no source of that name. */
  sourceData(name: string): Columns | null;
  /** The cells of a heatmap for the newest row that was drawn, the lowest first; 255 is missing. */
  newestTileColumn(chart: string): number[] | null;
}

export type DashboardElement = HTMLElement & { monitor?: MonitorHandle };

export function makeHandle(
  source: MonitorSource,
  view: () => { readonly feed: Feed; readonly document: BokehDocument } | null
): MonitorHandle {
  const find = (name: string): BokehSource | null =>
    (view()?.document.get_model_by_name(name) as BokehSource | null | undefined) ?? null;
  return {
    source,
    get schema() {
      return source.schema;
    },
    get feed() {
      return view()?.feed ?? null;
    },
    get document() {
      return view()?.document ?? null;
    },
    get stats() {
      return source.stats;
    },
    resetStats: () => source.resetStats(),
    sourceData: name => find(name)?.data ?? null,
    newestTileColumn: chart => {
      const tiles = find(`${chart}-tiles`);
      const drawn = view()?.feed.drawn;
      return tiles && drawn && source.schema ? column(tiles, source.schema, drawn.time) : null;
    }
  };
}

function column(source: BokehSource, schema: Schema, time: number): number[] | null {
  const { slots } = source.tags[0] as TilesTag;
  const slot = Math.floor(time / schema.interval);
  const span = Math.floor(slot / slots);
  const start = (schema.origin + span * slots * schema.interval) * 1000;
  const starts = Array.from(source.data.x as ArrayLike<number>);
  const image = (source.data.image as ArrayLike<Image>)[
    starts.findIndex(x => Math.abs(x - start) < 1)
  ];
  if (image === undefined) {
    return null;
  }
  return Array.from({ length: image.shape[0]! }, (_, row) => image[row * slots + (slot % slots)]!);
}
