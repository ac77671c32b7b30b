/** The rows since the page first subscribed, by their numbers: received, missed or hidden; and the request for those that are owed. */

/** All numbers count rows. `expected === received + missed`. */
export interface StreamStats {
  /** Rows that the kernel sent while the page was subscribed. */
  readonly expected: number;
  /** Of these, rows that arrived as frames. */
  readonly received: number;
  /** Of these, rows that did not arrive. */
  readonly missed: number;
  /** Rows that passed while the page was not subscribed: before it was there, or while nobody could see it. */
  readonly hidden: number;
  /** Missed and hidden rows that were fetched afterwards. */
  readonly backfilled: number;
  /** Missed and hidden rows that were gone from the kernel's memory when they were asked for. */
  readonly gone: number;
  /** Missed and hidden rows still to be fetched: `missed + hidden - backfilled - gone`. */
  readonly outstanding: number;
  /** Milliseconds from sampling to arrival of the newest frames, by the two hosts' clocks. */
  readonly ages: readonly number[];
}

const AGES = 3000;

export class Accounts {
  private expected = 0;
  private received = 0;
  private hidden = 0;
  private backfilled = 0;
  private gone = 0;
  private ages: number[] = [];
  /** Runs of rows that are owed, as [first, last], oldest first. */
  private owed: [number, number][] = [];
  private head = 0;

  /** The newest row's number that is accounted for; 0 before the first subscription. */
  get newest(): number {
    return this.head;
  }

  get stats(): StreamStats {
    return {
      expected: this.expected,
      received: this.received,
      missed: this.expected - this.received,
      hidden: this.hidden,
      backfilled: this.backfilled,
      gone: this.gone,
      outstanding: this.owed.reduce((sum, [first, last]) => sum + last - first + 1, 0),
      ages: this.ages
    };
  }

  /** Start over in another session, after row `seq` and with the history that the page is given. */
  reset(seq: number, history: Float64Array): void {
    this.restart();
    this.owed = seq > 0 ? [[1, seq]] : [];
    this.hidden = seq;
    this.head = seq;
    this.backfill(history);
  }

  /** Reset the counts: for measurements of the stream itself. */
  restart(): void {
    this.expected = this.received = this.hidden = this.backfilled = this.gone = 0;
    this.ages = [];
  }

  /** The stream goes on after `seq`; rows since the newest one passed unseen. */
  resume(seq: number): void {
    if (seq > this.head) {
      this.hidden += seq - this.head;
      this.owed.push([this.head + 1, seq]);
      this.head = seq;
    }
  }

  /**
   * A frame has arrived, `age` milliseconds after its row was sampled.
   *
   * @returns false for a row that was accounted for before.
   */
  frame(seq: number, age: number): boolean {
    if (seq <= this.head) {
      return false;
    }
    this.expected += seq - this.head;
    this.received += 1;
    if (seq > this.head + 1) {
      this.owed.push([this.head + 1, seq - 1]);
    }
    this.head = seq;
    this.ages.push(age);
    if (this.ages.length > AGES) {
      this.ages = this.ages.slice(-AGES / 2);
    }
    return true;
  }

  /** The number after which rows are owed; null when none is. */
  get owedSince(): number | null {
    return this.owed.length === 0 ? null : this.owed[0]![0] - 1;
  }

  /**
   * The history after `owedSince` has arrived: rows up to its last one that it does not hold were overwritten.
   *
   * @param seqs ascending
   */
  backfill(seqs: Float64Array): void {
    const last = seqs.length === 0 ? 0 : seqs[seqs.length - 1]!;
    const still: [number, number][] = [];
    for (const [first, end] of this.owed) {
      const until = Math.min(end, last);
      let found = 0;
      for (const seq of seqs) {
        found += seq >= first && seq <= until ? 1 : 0;
      }
      this.backfilled += found;
      this.gone += Math.max(0, until - first + 1) - found;
      if (end > last) {
        still.push([Math.max(first, last + 1), end]);
      }
    }
    this.owed = still;
  }
}

/** A gap in each frame must not cause a request for each frame. */
const REFILL_MS = 1000;

/** Requests for the rows that are owed, at most one a second. */
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

  /** Ask for the rows that are owed, if any, now or when a second has passed since the last request. */
  request(): void {
    clearTimeout(this.timer);
    const since = this.since();
    if (since === null) {
      return;
    }
    const wait = this.at + REFILL_MS - performance.now();
    if (wait > 0) {
      this.timer = setTimeout(() => this.request(), wait);
      return;
    }
    this.at = performance.now();
    this.fetch(since);
  }

  cancel(): void {
    clearTimeout(this.timer);
  }
}
