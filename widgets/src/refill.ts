/** Rows that were missed are fetched: at most once a second, as a gap a frame must not become a request a frame. */

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

  /** Something may be owed. */
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
