/** The part of BokehJS that is used, as structural types. */

interface BokehSignal<A extends unknown[]> {
  emit(...args: A): void;
}

export interface BokehModel {
  readonly type: string;
  readonly name: string | null;
  readonly tags: readonly unknown[];
  readonly attributes: Readonly<Record<string, unknown>>;
  setv(values: Record<string, unknown>): void;
  /** Emitted after some attribute changed. */
  readonly change?: { connect(slot: () => void): unknown };
}

export type Columns = Record<string, ArrayLike<unknown>>;

export interface BokehSource extends BokehModel {
  data: Columns;
  readonly patching: BokehSignal<[number[]]>;
  stream(data: Columns, rollover?: number): void;
}

export interface BokehDocument {
  readonly all_models: Iterable<BokehModel>;
  get_model_by_name(name: string): BokehModel | null;
  clear(): void;
}

/** A chart on the page. While it is paused, nothing of it is painted; pauses are counted. */
export interface FigureView {
  readonly model: BokehModel;
  readonly el: HTMLElement;
  pause(): void;
  unpause(): void;
  /** Paint now, not with the browser's next frame. */
  paint?(): void;
}

export interface BokehView {
  readonly model: { readonly document: BokehDocument | null; readonly type?: string };
  readonly child_views?: Iterable<BokehView>;
}

/** A two-dimensional image of bytes, row-major. */
export type Image = Uint8Array & { readonly shape: readonly number[] };

export interface BokehApi {
  readonly version: string;
  readonly documents: BokehDocument[];
  readonly embed: {
    embed_item(item: unknown, target: HTMLElement): Promise<{ readonly roots: BokehView[] }>;
  };
  require(module: 'core/util/ndarray'): {
    Uint8NDArray: new (init: Uint8Array, shape: [number, number]) => Image;
  };
  /** @throws Error when there is no such module. */
  require(module: string): unknown;
}
