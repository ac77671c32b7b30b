import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { Pace, SHARE } from '../src/charts/pace.js';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

const paces: Pace[] = [];
function make(): Pace {
  const pace = new Pace(250);
  pace.setWindow(60);
  pace.setDrawing(true);
  paces.push(pace);
  return pace;
}
afterEach(() => paces.splice(0).forEach(pace => pace.setDrawing(false)));

/** Messages take a millisecond under fake timers. */
function near(value: number, expected: number): void {
  expect(Math.abs(value / expected - 1)).toBeLessThan(0.07);
}

let spent = 0;
/** The clock goes on without the timers, as it does while a thread works. */
function busy(ms: number): void {
  spent += ms;
}

describe('a pace', () => {
  beforeEach(() => {
    spent = 0;
    vi.spyOn(performance, 'now').mockImplementation(() => Date.now() + spent);
    // Messages are no timers: deliver them like the browser does, after what is running.
    vi.stubGlobal('MessageChannel', FakeChannel);
    vi.stubGlobal('requestAnimationFrame', (call: () => void) => setTimeout(call, 16));
  });
  afterEach(() => {
    vi.unstubAllGlobals();
    vi.restoreAllMocks();
  });

  it('is the shortest while drawings are cheap, and what they may cost when they are dear', async () => {
    const pace = make();
    expect(pace.period).toBe(250);
    await draws(pace, 8, 10);
    expect(pace.period).toBe(250);
    await draws(pace, 8, 40);
    near(pace.cost, 40);
    near(pace.period, 40 / SHARE);
    await draws(pace, 8, 500);
    expect(pace.period).toBe(4000);
    await draws(pace, 8, 10);
    expect(pace.period).toBe(250);
  });

  it('leaves the cores to a training that wants them all, and takes its share again after it', async () => {
    const pace = make();
    await draws(pace, 8, 12);
    expect(pace.period).toBe(250);
    await loads(pace, 2, 100);
    near(pace.period, pace.cost / 0.01);
    await loads(pace, 2, NaN); // not known for a moment
    near(pace.period, pace.cost / 0.01);
    await loads(pace, 64, 100); // the browser's thread is a small part of those
    expect(pace.period).toBe(250);
    await loads(pace, 2, 100);
    await loads(pace, 2, 10);
    expect(pace.period).toBe(250);
  });

  /** Enough readings that the newest ones count alone. */
  async function loads(pace: Pace, cores: number, percent: number): Promise<void> {
    for (let i = 0; i < 50; i += 1) {
      pace.setLoad(cores, percent);
    }
    await draws(pace, 1, 12);
  }

  it('does not waver with small differences, nor with a few drawings that others delayed', async () => {
    const pace = make();
    await draws(pace, 8, 40);
    const { period } = pace;
    await draws(pace, 8, 43);
    expect(pace.period).toBe(period);
    await draws(pace, 5, 400);
    expect(pace.period).toBe(period);
  });

  it('shares the thread with the other dashboards of the page', async () => {
    const [pace, other] = [make(), make()];
    await draws(pace, 8, 30);
    near(pace.period, (30 / SHARE) * 2);
    other.setDrawing(false);
    await draws(pace, 1, 30);
    near(pace.period, 30 / SHARE);
  });

  it('takes no steps that are too small to see', () => {
    const pace = make();
    pace.setWindow(300);
    expect(pace.period).toBe(500);
  });

  async function draws(pace: Pace, count: number, ms: number): Promise<void> {
    for (let i = 0; i < count; i += 1) {
      const done = pace.measure();
      // Bokeh asks for the same frame, after us.
      requestAnimationFrame(() => busy(ms / 2));
      busy(ms / 2);
      done();
      await vi.advanceTimersByTimeAsync(20);
    }
  }
});

class FakeChannel {
  readonly port1: { onmessage: (() => void) | null; close: () => void } = {
    onmessage: null,
    close: () => undefined
  };
  readonly port2 = { postMessage: () => void setTimeout(() => this.port1.onmessage?.(), 0) };
}
