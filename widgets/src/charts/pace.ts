/** The period of drawing: short enough to look live, long enough that the page's thread still answers clicks. */

/** Share of the page's thread that drawing may take, of all dashboards of the page together… */
export const SHARE = 0.08;
/**
 * …and beside a machine that is busy, for each of its cores: it may be the browser's own, and trains. With what
 * compositing and rasterising take beside this thread, that is one to two hundredths of the machine.
 */
const BUSY_SHARE = 0.005;
/** The weight of the newest reading of how busy it is: a period that wavers is visible. */
const NEWEST = 0.1;
/** …more where it has less to give: readings are rare then. */
const NEWEST_LESS = 0.3;
/** A step of the whole window's width by this part of it is too small to see… */
const STEPS = 600;
/** …but drawing happens this often at least, in ms. */
const LONGEST_MS = 4000;
/** The cost is the lower quartile of so many drawings: what other programs took of the processor is not ours. */
const RECENT = 8;
/** The period stays while the wanted one differs by less than this share: a rate that wavers is visible. */
const STEADY = 0.15;

// Shared by the bundles of the cell and of the sidebar.
const DRAWING = Symbol.for('kernel_monitor.drawing');

function drawing(): Set<object> {
  const page = globalThis as { [DRAWING]?: Set<object> };
  return (page[DRAWING] ??= new Set());
}

export class Pace {
  /** Milliseconds between two drawings now. */
  period: number;
  /** Milliseconds that a drawing takes of this thread: sources, Bokeh's paint, and the browser's. */
  cost = 0;
  private share = SHARE;
  private readonly recent: number[] = [];
  private window = 0;

  /** @param shortest - milliseconds between two drawings at least */
  constructor(private readonly shortest: number) {
    this.period = shortest;
  }

  /** Set how many seconds the charts show. */
  setWindow(seconds: number): void {
    this.window = seconds;
    this.period = this.wanted();
  }

  /** Set whether this one draws: those that do share the thread. */
  setDrawing(draws: boolean): void {
    if (draws) {
      drawing().add(this);
    } else {
      drawing().delete(this);
    }
  }

  /**
   * Take how busy the measured machine is.
   *
   * @param busy - the mean of its cores in %; NaN where that is not known
   */
  setLoad(cores: number, busy: number): void {
    if (Number.isFinite(busy)) {
      const idle = cores * (1 - busy / 100);
      const share = Math.min(SHARE, Math.max(BUSY_SHARE * cores, SHARE * idle));
      this.share += (share < this.share ? NEWEST_LESS : NEWEST) * (share - this.share);
    }
  }

  /** Measure a drawing: call before it, and what is returned after it. */
  measure(): () => void {
    const started = performance.now();
    let [busy, frame] = [NaN, NaN];
    const take = (): void => {
      if (busy >= 0 && frame >= 0) {
        this.take(busy + frame);
      }
    };
    // Asked for before Bokeh asks: of a frame's callbacks this is then the first, and Bokeh's paint comes after it.
    requestAnimationFrame(() => {
      const begun = performance.now();
      afterwards(() => {
        frame = performance.now() - begun;
        take();
      });
    });
    return () => {
      // Bokeh takes up new data in microtasks.
      afterwards(() => {
        busy = performance.now() - started;
        take();
      });
    };
  }

  private take(cost: number): void {
    this.recent.push(cost);
    if (this.recent.length > RECENT) {
      this.recent.shift();
    }
    this.cost = [...this.recent].sort((a, b) => a - b)[Math.floor(this.recent.length / 4)]!;
    const wanted = this.wanted();
    if (Math.abs(wanted - this.period) > STEADY * this.period || wanted === this.shortest) {
      this.period = wanted;
    }
  }

  private wanted(): number {
    const affordable = (this.cost * Math.max(1, drawing().size)) / this.share;
    const visible = (this.window * 1000) / STEPS;
    return Math.max(this.shortest, Math.min(LONGEST_MS, Math.max(affordable, visible)));
  }
}

/** Call after the task, the microtasks or the frame that is running: a message is the next task. */
function afterwards(call: () => void): void {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close();
    call();
  };
  port2.postMessage(null);
}
