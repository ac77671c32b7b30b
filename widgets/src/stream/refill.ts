/** Rows that were missed are fetched: at most once a second, so that a gap in each frame does not cause a request for each frame. */

const REFILL_MS = 1000;

export class Refill {
  private at = -Infinity;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /**
   * @param since - the number after which rows are owed; null when none is
   * @param fetch - asks for them
   */
  constructor(
    private readonly since: () => number | null,
    private readonly fetch: (since: number) => void
  ) {}

  /** Rows may be missing. */
  look(): void {
    clearTimeout(this.timer);
    const since = this.since();
    if (since === null) {
      return;
    }
    const wait = this.at + REFILL_MS - performance.now();
    if (wait > 0) {
      this.timer = setTimeout(() => this.look(), wait);
      return;
    }
    this.at = performance.now();
    this.fetch(since);
  }

  rest(): void {
    clearTimeout(this.timer);
  }
}
