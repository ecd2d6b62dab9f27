// 3 Callers: who uses the quota.

import { get } from './api.js';
import { h, hide, put, putLink, rows } from './dom.js';
import { now } from './state.js';
import { clock, etaOf, grouped, per, percent, span, windowWords } from './words.js';

// The third is what the number counts: a filter of the calls.
const TITLES = [['Caller', ''], ['Share', '.num'], ['Calls', '.num', ''], ['Sent', '.num.drop-1', '&source=upstream'], ['Waiting', '.num', '&decision=queue'], ['Done in', '.num'], ['Wait p50', '.num.drop-3', '&decision=queue'], ['Wait p99', '.num', '&decision=queue'], ['Rejected', '.num', '&decision=reject'], ['Left early', '.num.drop-3', '&q=client_gone']];

export function mount(root) {
  const body = h('div');
  const empty = h('div.table', { hidden: true }, h('div.empty', null, h('b', null, 'Every call is '), h('code', null, 'default'), h('b', null, '.'), ' Put @name in the base URL: ', h('code', null, '/tmdb@scanner/3')));
  const nothing = h('div.table', { hidden: true }, h('div.empty', null, 'No call has come through Tollgate since it started.'));
  root.replaceChildren(h('h1', null, 'Callers'), h('p.mute', null, 'Who sent how much in the current window of each provider’s longest limit (at most a day), or else in the last hour. Ticks under a bar are the shares that the configuration grants (at_least) or allows (at_most). Waits are since the start.'), empty, nothing, body);
  async function load() {
    const reply = await get('/v1/callers').catch(() => null);
    if (!reply || !root.isConnected) return;
    const shown = reply.providers.filter((one) => one.callers.length);
    const isDefault = shown.length > 0 && shown.every((one) => one.callers.every((caller) => caller.name === 'default'));
    hide(empty, !isDefault);
    hide(nothing, shown.length > 0);
    shown.sort((a, b) => total(b) - total(a) || (a.name < b.name ? -1 : 1));
    // Sections outside the window are drawn when they are scrolled to.
    rows(body, shown, (one) => one.name, makeProvider, (element, one) => {
      element.data = one;
      seen.observe(element);
      if (element.isSeen || !element.isDrawn) drawSoon(element);
    });
  }
  const due = new Set();
  let frame = 0;
  function drawSoon(element) {
    due.add(element);
    if (!frame) frame = requestAnimationFrame(drawSome);
  }
  // Some milliseconds of each frame: hundreds of providers are no reason to miss one.
  function drawSome() {
    const end = performance.now() + 8;
    for (const element of due) {
      due.delete(element);
      updateProvider(element, element.data);
      element.isDrawn = true;
      if (performance.now() > end) break;
    }
    frame = due.size ? requestAnimationFrame(drawSome) : 0;
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      entry.target.isSeen = entry.isIntersecting;
      if (entry.isIntersecting) drawSoon(entry.target);
    }
  }, { rootMargin: '200px' });
  load();
  const timer = setInterval(() => { if (!document.hidden) load(); }, 2000);
  return { update() {}, rows: () => [...body.querySelectorAll('tbody tr')], leave: () => { clearInterval(timer); cancelAnimationFrame(frame); seen.disconnect(); } };
}

// A caller has the same shade everywhere, whatever its share.
function shade(name) {
  let hash = 16;
  for (const letter of name) hash = (hash * 33 + letter.codePointAt(0)) % 65521;
  return hash % 5;
}

function total(provider) {
  return provider.callers.reduce((sum, one) => sum + one.sent, 0);
}

function makeProvider(provider) {
  const parts = { stack: h('div.stack', { role: 'img' }), ticks: h('div.ticks', { 'aria-hidden': 'true' }), body: h('tbody'), window: h('span.mute.window') };
  const element = h('section.lazy', null, h('h2', null, h('a', { href: `#/provider/${encodeURIComponent(provider.name)}` }, provider.name), parts.window), parts.stack, parts.ticks, h('div.table', null, h('table.callers', null, h('thead', null, h('tr', null, ...TITLES.map(([title, more]) => h(`th${more}`, { scope: 'col' }, title)))), parts.body)));
  element.parts = parts;
  return element;
}

function updateProvider(element, provider) {
  const { stack, ticks, body, window } = element.parts;
  put(window, provider.window === undefined ? '' : windowWords(provider, now()));
  const all = Math.max(1, total(provider));
  const callers = [...provider.callers].sort((a, b) => b.sent - a.sent || b.calls - a.calls);
  rows(stack, callers.filter((one) => one.sent), (one) => one.name, () => h('span'), (piece, one) => {
    piece.className = `fill-${shade(one.name)}`;
    piece.style.flexGrow = String(one.sent / all);
    put(piece, one.sent / all > 0.08 ? one.name : '');
    const title = `${one.name} ${percent(one.sent / all)}`;
    if (piece.title !== title) piece.title = title;
  });
  stack.setAttribute('aria-label', callers.map((one) => `${one.name} ${percent(one.sent / all)}`).join(', '));
  const marks = callers.flatMap((one) => [['at_least', one.at_least], ['at_most', one.at_most]].filter(([, share]) => share).map(([word, share]) => ({ id: `${one.name} ${word}`, text: `${one.name} ${word} ${percent(share)}`, share })));
  hide(ticks, marks.length === 0);
  rows(ticks, marks, (one) => one.id, (one) => h('span', null, one.text), (mark, one) => { mark.style.left = `${Math.min(88, one.share * 100)}%`; });
  rows(body, callers, (one) => one.name, (one) => makeRow(provider.name, one), (row, one) => {
    const { cells } = row;
    const values = [percent(one.sent / all), grouped(one.calls), grouped(one.sent), one.waiting ? grouped(one.waiting) : '–', etaOf(one), one.wait_p50 === null ? '–' : span(one.wait_p50), one.wait_p99 === null ? '–' : span(one.wait_p99), one.rejected ? grouped(one.rejected) : '–', one.left ? grouped(one.left) : '–'];
    values.forEach((value, at) => (row.links[at + 1] ? putLink(row.links[at + 1], value, row.links[at + 1].to) : put(cells[at + 1], value)));
    put(row.budgets, (one.limits || []).map(budgetWords).join('; '));
    hide(row.budgets, !(one.limits || []).length);
  });
}

// "team budget: 400 of 500 tokens per day used, 100 remaining, resets 00:00"
function budgetWords(limit) {
  const unit = limit.unit.replace('_', ' ');
  const reset = limit.reset_at ? `, resets ${clock(limit.reset_at, true)}` : '';
  return `${limit.name}: ${grouped(limit.used)} of ${grouped(limit.limit)} ${unit} ${per(limit.period)} used, ${grouped(limit.remaining)} remaining${reset}`;
}

function makeRow(provider, one) {
  const calls = `#/calls?provider=${encodeURIComponent(provider)}&caller=${encodeURIComponent(one.name)}`;
  const links = TITLES.map(([, , filter]) => (filter === undefined ? null : Object.assign(h('a'), { to: calls + filter })));
  const budgets = h('div.mute', { hidden: true });
  const row = h('tr', null, h('td', null, h('a.name', { href: calls }, one.name), one.priority ? h('span.mute', null, ` ${one.priority}`) : null, budgets), ...TITLES.slice(1).map(([title, more], at) => h(`td${more}${title === 'Done in' ? '.eta' : ''}`, { 'data-title': title }, links[at + 1])));
  Object.assign(row, { budgets, links });
  return row;
}
