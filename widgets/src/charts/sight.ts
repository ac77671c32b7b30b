/** The charts on the screen: those scrolled out of it are neither fed nor painted. */

import type { BokehModel, FigureView } from './bokeh_api.js';

export class Sight {
  private readonly unseen = new Set<FigureView>();
  /** The figures that draw a source; those that no figure draws are not in it. */
  private readonly users = new Map<BokehModel, FigureView[]>();
  private readonly observer: IntersectionObserver | null = null;

  /** @param onSeen - called when a chart comes into sight */
  constructor(
    private readonly figures: readonly FigureView[],
    private readonly onSeen: () => void
  ) {
    for (const figure of figures) {
      for (const renderer of (figure.model.attributes.renderers ?? []) as readonly BokehModel[]) {
        const source = renderer.attributes.data_source as BokehModel | undefined;
        if (source !== undefined) {
          this.users.set(source, [...(this.users.get(source) ?? []), figure]);
        }
      }
    }
    if (figures.length > 0) {
      this.observer = new IntersectionObserver(entries => this.update(entries));
      figures.forEach(({ el }) => this.observer!.observe(el));
    }
  }

  /** Return whether some chart on the screen draws a source. */
  sees(source: BokehModel): boolean {
    const users = this.users.get(source);
    return users === undefined || users.some(figure => !this.unseen.has(figure));
  }

  /** Paint every chart now, those out of sight too: for paper. They do not rest again before they are next scrolled. */
  paintAll(): void {
    this.unseen.forEach(figure => figure.unpause());
    this.unseen.clear();
    this.figures.forEach(figure => figure.paint?.());
  }

  dispose(): void {
    this.observer?.disconnect();
  }

  private update(entries: readonly IntersectionObserverEntry[]): void {
    let came = false;
    for (const { target, isIntersecting } of entries) {
      const figure = this.figures.find(({ el }) => el === target)!;
      if (isIntersecting === !this.unseen.has(figure)) {
        continue;
      }
      if (isIntersecting) {
        this.unseen.delete(figure);
        figure.unpause();
        came = true;
      } else {
        this.unseen.add(figure);
        figure.pause();
      }
    }
    if (came) {
      this.onSeen();
    }
  }
}
