import { beforeEach, describe, expect, it } from 'vitest';

import { Machines } from '../src/page/machines.js';
import { connecting, running } from '../src/stream/connection.js';
import type { Schema, Settings } from '../src/stream/page_messages.js';
import { makeSchema } from './fakes.js';
import { FakeSource } from './fakesource.js';

const SETTINGS = { charts: ['nodes'], record: true } as unknown as Settings;
let version = 1;

function schema(...folded: boolean[]): Schema {
  version += 1;
  const nodes = folded.map((each, k) => ({
    id: `node-${k + 1}`,
    name: `rack-${k + 1}`,
    cores: [0, 1],
    alive: true,
    reason: null,
    gpus: [],
    folded: each
  }));
  return { ...makeSchema(), version, nodes };
}

describe('the machines above the charts', () => {
  let source: FakeSource;
  let machines: Machines;
  const names = (): (string | null)[] =>
    [...machines.el.querySelectorAll<HTMLButtonElement>('button')]
      .filter(each => !each.hidden)
      .map(each => each.textContent);
  const press = async (k: number): Promise<void> => {
    machines.el.querySelectorAll('button')[k]!.click();
    await Promise.resolve();
  };

  beforeEach(() => {
    source = new FakeSource();
    source.settings = SETTINGS;
    source.schema = schema(true, false);
    machines = new Machines(source);
    machines.update();
  });

  it('say which ones show their cores', () => {
    expect(machines.el.hidden).toBe(false);
    expect(names()).toEqual(['▸ rack-1', '▾ rack-2']);
    const [one, other] = machines.el.querySelectorAll('button');
    expect(one!.getAttribute('aria-expanded')).toBe('false');
    expect(other!.getAttribute('aria-expanded')).toBe('true');
  });

  it('ask for one more, or one less', async () => {
    await press(0);
    expect(source.configure).toHaveBeenLastCalledWith({ unfolded: ['node-1', 'node-2'] });
    await press(1);
    expect(source.configure).toHaveBeenLastCalledWith({ unfolded: ['none'] });
  });

  it('keep the focus while the schema changes, and let go of machines that are gone', () => {
    document.body.replaceChildren(machines.el);
    const [one] = machines.el.querySelectorAll('button');
    one!.focus();
    source.schema = schema(false);
    machines.update();
    expect(names()).toEqual(['▾ rack-1']);
    expect(document.activeElement).toBe(one);
  });

  it('fold and unfold many together', async () => {
    source.schema = schema(true, true, true);
    machines.update();
    expect(names().at(-1)).toBe('unfold all');
    await press(3);
    expect(source.configure).toHaveBeenLastCalledWith({ unfolded: ['all'] });
    source.schema = schema(false, true, true);
    machines.update();
    expect(names().at(-1)).toBe('fold all');
  });

  it('are not there without the chart, or without a kernel that can be asked', () => {
    source.settings = { ...SETTINGS, charts: ['cpu'] };
    machines.update();
    expect(machines.el.hidden).toBe(true);
    source.settings = SETTINGS;
    source.connection = connecting();
    machines.update();
    expect(machines.el.hidden).toBe(true);
    source.connection = running(0.1);
    machines.update();
    expect(names()).toEqual(['▸ rack-1', '▾ rack-2']);
  });

  it('say why a setting was not taken', async () => {
    source.configure.mockRejectedValueOnce(new Error('No kernel.'));
    await press(0);
    await new Promise(resolve => setTimeout(resolve));
    expect(machines.el.querySelector('[role=alert]')!.textContent).toBe(
      'That was not set: No kernel.'
    );
  });
});
