// What a page does with a document of kernel_monitor.views after embedding it. No eval: the page's policy forbids it.

const TEXT_COLORS = ['text_color', 'major_label_text_color', 'label_text_color'];

/** Format times of the axes in a zone: `offset(ms)` is its distance from UTC in ms at that moment. */
function showZone(models, offset) {
  for (const model of models) {
    if (model.type !== 'DatetimeTickFormatter') continue;
    const utc = model.doFormat.bind(model);
    model.doFormat = (ticks, ...rest) => utc(ticks.map((tick) => tick + offset(tick)), ...rest);
  }
}

/** `19:07:31.4` in the zone. */
function clock(ms, offset) {
  return new Date(ms + offset(ms)).toISOString().slice(11, 21);
}

function line(...words) {
  const element = document.createElement('div');
  element.className = 'km-tooltip';
  for (const [k, word] of words.entries()) {
    const part = document.createElement(k === words.length - 1 ? 'b' : 'span');
    part.textContent = word;
    element.append(part, ' ');
  }
  element.style.cssText = 'font: 12px system-ui, sans-serif; white-space: nowrap; color: #1f2733';
  return element;
}

/** A value with its unit; bytes in decimal multiples: `28.8 GB`, `312 kB/s`. */
function amount(value, unit) {
  if (typeof value !== 'number' || !Number.isFinite(value)) return 'no sample';
  if (unit !== 'B' && unit !== 'B/s') return `${value.toLocaleString('en', { maximumFractionDigits: 1 })} ${unit}`;
  const bytes = Math.round(value);
  // As it is shown: 999,600 are 1.00 MB.
  const digits = Math.abs(bytes) < 1 ? 0 : Math.log10(Number(bytes.toPrecision(3)));
  const step = Math.min(5, Math.max(0, Math.floor(digits / 3 + 1e-9)));
  const options = { minimumSignificantDigits: 3, maximumSignificantDigits: 3, useGrouping: false };
  const shown = step === 0 ? String(bytes) : (bytes / 1000 ** step).toLocaleString('en', options);
  return `${shown} ${['', 'k', 'M', 'G', 'T', 'P'][step]}${unit}`;
}

/** Tooltips that Bokeh's formatters cannot write: names of rows, local time, and that there was no sample. */
function improveHover(models, offset) {
  for (const model of models) {
    if (model.type !== 'HoverTool') continue;
    const tag = model.tags.find((one) => typeof one === 'object');
    if (tag?.kind === 'hover-tiles') {
      model.tooltips = (source, vars) => {
        const { index, i, j, flat_index } = vars.image_index;
        const { labels, slots, unit } = source.tags[0];
        const value = source.get_column('image')[index][flat_index];
        const start = source.get_column('x')[index] + (i * source.get_column('dw')[index]) / slots;
        const reading = value === 255 ? 'no sample' : amount(value, unit);
        return line(labels[j], clock(start, offset), reading);
      };
    } else if (tag?.kind === 'hover-lines') {
      model.tooltips = (source, vars) => {
        const over = vars.glyph_view?.model.y?.field;
        const chosen = tag.values.find(([, column]) => column === over) ?? (tag.values.length === 1 && tag.values[0]);
        if (!chosen) return line('');
        const [label, column, unit, column2, unit2] = chosen;
        const read = (name, of) => amount(source.get_column(name)[vars.index], of);
        const second = column2 === undefined ? '' : ` · ${read(column2, unit2)}`;
        return line(label, clock(source.get_column('time')[vars.index], offset), read(column, unit) + second);
      };
    }
  }
}

/** Give axes, titles and legends the page's colour; glyphs keep theirs unless they are tagged "ink". */
function paint(models, color) {
  for (const model of models) {
    // Separators and hatches have colours of their own.
    if (model.type === 'Text' || model.tags.includes('own')) continue;
    for (const name of TEXT_COLORS) {
      if (name in model.properties) model[name] = color;
    }
  }
}

/** Pixels: of a letter at 10.5 px, of a wide one (arrows, CJK), beside a text, and between label and line. */
const [LETTER, WIDE, PADDING, OFFSET] = [6, 11, 14, 5];

/** Show the newest labels and those that overlap with none of these; a band is named at the edge if it began before. */
function placeLabels(source, time, width) {
  const { data } = source;
  const pixels = width / (time.end - time.start);
  const bands = 'left' in data;
  const at = Array.from(bands ? data.left : data.time, (start, i) =>
    bands ? Math.min(Math.max(start, time.start), data.right[i]) : start
  );
  const taken = [];
  const place = at.map(() => NaN);
  for (const i of [...at.keys()].sort((a, b) => at[b] - at[a])) {
    const room = [...data.label[i]].reduce((sum, c) => sum + (c >= '\u2000' ? WIDE : LETTER), PADDING);
    const right = bands || data.align[i] === 'left';
    const line = (at[i] - time.start) * pixels;
    const from = line + (right ? OFFSET : -OFFSET - room);
    if (line >= 0 && line <= width && taken.every(([a, b]) => from + room <= a || from >= b)) {
      taken.push([from, from + room]);
      place[i] = at[i];
    }
  }
  source.data = { ...data, place };
}

/** Keep the labels apart in what is visible, whatever that becomes. */
function keepApart(models, time) {
  const sources = models.filter((model) => ['markers', 'bands'].includes(model.name) && model.type === 'ColumnDataSource');
  const chart = models.find((model) => model.type === 'Figure');
  if (!chart) return;
  let due = false;
  const place = () => {
    due = false;
    for (const source of sources) placeLabels(source, time, chart.inner_width);
  };
  const soon = () => {
    if (!due) requestAnimationFrame(place);
    due = true;
  };
  for (const property of [time.properties.start, time.properties.end, chart.properties.inner_width]) {
    property.change.connect(soon);
  }
  place();
}

/** All views of the document. */
function views() {
  return [...Bokeh.index.query(() => true)];
}

/** A figure is not cut in two by the edge of a sheet, and a heading stays with what it heads. */
function keepWhole() {
  for (const view of views()) {
    if (view.model.type === 'Figure') view.el.style.breakInside = 'avoid';
    else if (view.model.type === 'Pane') view.el.style.breakAfter = 'avoid';
  }
}

/** CSS pixels between the margins of an A4 sheet, as `page.css` sets them. */
const SHEET = 700;
const opened = [];

/** On paper everything is unfolded, light, and the charts are as wide as the sheet. */
function beforePrint() {
  show(false);
  // Bokeh paints at the next frame, which comes after the sheet was made.
  for (const view of views()) if (view.model.type === 'Figure') view.paint?.();
  for (const one of document.querySelectorAll('details:not([open])')) {
    one.open = true;
    opened.push(one);
  }
  const charts = document.getElementById('charts');
  const width = charts.offsetWidth;
  charts.style.width = `${width}px`;
  charts.style.zoom = String(Math.min(1, SHEET / width));
}

function afterPrint() {
  for (const one of opened.splice(0)) one.open = false;
  document.getElementById('charts').removeAttribute('style');
  show(dark);
}

const item = JSON.parse(document.getElementById('document').textContent);
const { Bokeh } = window;
// What is written is painted before the charts take the page's thread.
await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
const embedded = await Bokeh.embed.embed_item(item, 'charts');
const root = (embedded.roots ?? [...embedded])[0].model;
const models = [...root.references()];
const offset = () => item.zone_ms;
showZone(models, offset);
improveHover(models, offset);

const time = models.find((model) => model.type === 'Range1d' && model.name === 'time');
const whole = [time.start, time.end];
keepApart(models, time);
for (const tool of document.querySelectorAll('[data-zoom]')) {
  tool.addEventListener('click', () => {
    const middle = (time.start + time.end) / 2;
    const half = (Number(tool.dataset.zoom) * (time.end - time.start)) / 2;
    const [start, end] = tool.dataset.zoom === 'all' ? whole : [middle - half, middle + half];
    time.setv({ start, end });
  });
}

const wish = window.matchMedia('(prefers-color-scheme: dark)');
const button = document.getElementById('theme');
let dark = wish.matches;

function show(isDark) {
  document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
  button.setAttribute('aria-pressed', String(isDark));
  paint(models, getComputedStyle(document.body).getPropertyValue('--soft').trim());
}
button.addEventListener('click', () => show((dark = !dark)));
wish.addEventListener('change', () => show((dark = wish.matches)));
window.addEventListener('beforeprint', beforePrint);
window.addEventListener('afterprint', afterPrint);
show(dark);
keepWhole();
performance.mark('charts-drawn');
document.documentElement.dataset.ready = 'true';
