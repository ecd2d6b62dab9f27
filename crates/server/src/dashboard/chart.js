// Charts over time on a canvas: stacked areas or lines, one cursor for all, bands tinted by state, a dashed
// line for the limit, and a table for readers that see no canvas.

import { h } from './dom.js';
import { clock, look, short, span } from './words.js';

const FONT = '12px system-ui, sans-serif';
const LEFT_MIN = 34;
const BOTTOM = 20;
const TOP = 6;
const charts = new Set();
let cursor = null;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// 1, 2 or 5 times a power of ten: so that at most four lines fit.
function niceStep(top) {
  const rough = top / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough) || 10 * power;
}

const TIME_STEPS = [5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600];

export class Chart {
  // lines: [{ label, tone, of(history) → values }], options: { stack, format, height }
  constructor(title, lines, options) {
    this.title = title;
    this.lines = lines;
    this.options = options || {};
    this.format = this.options.format || short;
    this.canvas = h('canvas', { role: 'img', 'aria-label': `${title}: see the table that follows` });
    this.box = h('div.chart-box', null, this.canvas);
    this.box.style.height = `${this.options.height || 200}px`;
    this.legend = h('div.chart-legend');
    this.table = h('table.sr');
    this.element = h('figure.chart', null, h('figcaption', null, h('span', null, title), this.legend), this.box, h('div.sr', null, this.table));
    this.observer = new ResizeObserver(() => this.paint());
    this.observer.observe(this.box);
    this.canvas.addEventListener('mousemove', (event) => point(this.timeAt(event.offsetX)));
    this.canvas.addEventListener('mouseleave', () => point(null));
    charts.add(this);
  }

  draw(history, limit) {
    this.history = history;
    this.limit = limit || 0;
    this.values = this.lines.map((line) => line.of(history));
    const { length } = this.values[0];
    this.from = history.until - length * history.every;
    this.tops = this.options.stack ? stacked(this.values) : this.values;
    const highest = this.tops.reduce((most, list) => list.reduce((one, value) => Math.max(one, value), most), 0);
    this.isAny = highest > 0 || this.limit > 0;
    this.top = Math.max(highest, this.limit, 0.001) * 1.1;
    this.paint();
    this.drawLegend();
    this.drawTable();
  }

  get length() {
    return this.values ? this.values[0].length : 0;
  }

  // The span that is asked for, also while less of it is known: a new curve grows from the right.
  get seconds() {
    const asked = { 1: 300, 10: 3600, 60: 86400 }[this.history.every];
    return Math.max(asked, this.length * this.history.every);
  }

  // As wide as the longest label of the axis.
  measure(pen) {
    pen.font = FONT;
    const step = niceStep(this.top);
    let widest = 0;
    for (let value = 0; value <= this.top; value += step) widest = Math.max(widest, pen.measureText(this.format(value)).width);
    this.left = Math.max(LEFT_MIN, Math.ceil(widest) + 14);
  }

  x(time) {
    const start = this.history.until - this.seconds;
    return this.left + ((time - start) / this.seconds) * (this.width - this.left - 8);
  }

  y(value) {
    return this.height - BOTTOM - (value / this.top) * (this.height - BOTTOM - TOP);
  }

  timeAt(offset) {
    if (!this.history) return null;
    return this.history.until - this.seconds + ((offset - this.left) / (this.width - this.left - 8)) * this.seconds;
  }

  indexAt(time) {
    const at = Math.floor((time - this.from) / this.history.every);
    return at >= 0 && at < this.length ? at : null;
  }

  paint() {
    if (!this.history || !this.box.clientWidth) return;
    const scale = devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    const { canvas } = this;
    if (canvas.width !== Math.round(this.width * scale) || canvas.height !== Math.round(this.height * scale)) {
      canvas.width = Math.round(this.width * scale);
      canvas.height = Math.round(this.height * scale);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${this.height}px`;
    }
    const pen = canvas.getContext('2d');
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = FONT;
    this.measure(pen);
    if (!this.isAny) {
      pen.fillStyle = colour('mute');
      pen.textAlign = 'center';
      pen.fillText(this.options.empty || 'no calls in this time', this.width / 2, this.height / 2);
      return;
    }
    this.paintGrid(pen);
    this.paintBands(pen);
    this.tops.map((list, at) => [list, this.lines[at], this.options.stack && at ? this.tops[at - 1] : null]).forEach(([list, line, below]) => this.paintLine(pen, list, line, below));
    if (this.limit) this.dashed(pen, this.y(this.limit));
    this.paintCursor(pen);
  }

  paintGrid(pen) {
    pen.strokeStyle = colour('line');
    pen.fillStyle = colour('mute');
    pen.lineWidth = 1;
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    const step = niceStep(this.top);
    for (let value = 0; value <= this.top; value += step) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(this.left, y);
      pen.lineTo(this.width - 8, y);
      pen.stroke();
      pen.fillText(this.format(value), this.left - 8, y);
    }
    pen.textAlign = 'center';
    const every = TIME_STEPS.find((one) => one * (this.width - this.left) >= this.seconds * 74) || 43200;
    const zone = new Date().getTimezoneOffset() * 60;
    const start = this.history.until - this.seconds;
    for (let time = Math.ceil((start - zone) / every) * every + zone; time <= this.history.until; time += every) {
      const x = this.x(time);
      if (x > this.left + 16 && x < this.width - 24) pen.fillText(timeLabel(time, every), x, this.height - 8);
    }
  }

  paintBands(pen) {
    const { state, states, every } = this.history;
    for (let at = 0; at < state.length; at += 1) {
      if (!state[at]) continue;
      let last = at;
      while (last + 1 < state.length && state[last + 1] === state[at]) last += 1;
      const x = this.x(this.from + at * every);
      pen.globalAlpha = 0.16;
      pen.fillStyle = colour(look(states[state[at]]).tone);
      pen.fillRect(x, TOP, Math.max(1, this.x(this.from + (last + 1) * every) - x), this.height - BOTTOM - TOP);
      pen.globalAlpha = 1;
      at = last;
    }
  }

  paintLine(pen, list, line, below) {
    const { every } = this.history;
    const tone = colour(line.tone);
    let isGap = false;
    pen.beginPath();
    list.forEach((value, at) => {
      const x = this.x(this.from + (at + 0.5) * every);
      if (value === null) isGap = true;
      else if (at && !isGap) pen.lineTo(x, this.y(value));
      else {
        pen.moveTo(x, this.y(value));
        isGap = false;
      }
    });
    if (!this.options.stack) {
      pen.strokeStyle = tone;
      pen.lineWidth = 1.5;
      pen.lineJoin = 'round';
      pen.stroke();
      return;
    }
    for (let at = list.length - 1; at >= 0; at -= 1) pen.lineTo(this.x(this.from + (at + 0.5) * every), this.y(below ? below[at] : 0));
    pen.closePath();
    pen.globalAlpha = 0.75;
    pen.fillStyle = tone;
    pen.fill();
    pen.globalAlpha = 1;
  }

  dashed(pen, at) {
    const y = Math.round(at) + 0.5;
    pen.save();
    pen.strokeStyle = colour('text');
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(this.left, y);
    pen.lineTo(this.width - 8, y);
    pen.stroke();
    pen.restore();
  }

  paintCursor(pen) {
    if (cursor === null) return;
    const x = Math.round(this.x(cursor)) + 0.5;
    if (x < this.left || x > this.width - 8) return;
    pen.strokeStyle = colour('mute');
    pen.beginPath();
    pen.moveTo(x, TOP);
    pen.lineTo(x, this.height - BOTTOM);
    pen.stroke();
    pen.fillStyle = colour('text');
    pen.textAlign = x > this.width / 2 ? 'right' : 'left';
    pen.fillText(clock(cursor), x + (x > this.width / 2 ? -6 : 6), TOP + 6);
  }

  // The value under the cursor, or the newest.
  drawLegend() {
    const at = cursor === null ? this.length - 1 : this.indexAt(cursor);
    const text = (value) => (at === null || at < 0 || value[at] === null ? '–' : this.format(value[at]));
    if (!this.legend.firstChild) {
      this.legend.append(...this.lines.map((line) => h('span', null, h('i.swatch', { 'data-tone': line.tone }), `${line.label} `, h('b'))), h('span', null, h('i.swatch-limit'), 'limit ', h('b')));
    }
    [...this.legend.children].forEach((item, which) => {
      const isLimit = which === this.lines.length;
      item.hidden = isLimit && !this.limit;
      const value = isLimit ? this.format(this.limit) : text(this.values[which]);
      if (item.lastChild.textContent !== value) item.lastChild.textContent = value;
    });
  }

  // At most twelve rows: what a person would read off the curve.
  drawTable() {
    const step = Math.max(1, Math.ceil(this.length / 12));
    const rows = [];
    for (let at = this.length - 1; at >= 0; at -= step) {
      rows.push(h('tr', null, h('th', { scope: 'row' }, clock(this.from + at * this.history.every)), ...this.values.map((list) => h('td', null, list[at] === null ? '–' : this.format(list[at])))));
    }
    this.table.replaceChildren(h('caption', null, `${this.title}, every ${span(this.history.every * step)}`), h('thead', null, h('tr', null, h('th', { scope: 'col' }, 'time'), ...this.lines.map((line) => h('th', { scope: 'col' }, line.label)))), h('tbody', null, ...rows));
  }

  destroy() {
    this.observer.disconnect();
    charts.delete(this);
  }
}

function stacked(series) {
  let below = null;
  return series.map((values) => {
    below = values.map((value, at) => value + (below ? below[at] : 0));
    return below;
  });
}

// All charts have the same cursor.
function point(time) {
  cursor = time;
  for (const chart of charts) {
    if (!chart.history) continue;
    chart.paint();
    chart.drawLegend();
  }
}

function timeLabel(epoch, every) {
  const date = new Date(epoch * 1000);
  const two = (value) => String(value).padStart(2, '0');
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return every < 60 ? `${time}:${two(date.getSeconds())}` : time;
}
