// 1 Overview: one sentence, four figures, every provider.

import { get } from './api.js';
import { copyButton, h, hide, put, putLink, rows, set, spark } from './dom.js';
import { drawLane, lane } from './lane.js';
import { alertOf, mean, needsAttention, now, onProviderHistory, ranked, state, sum, tightest, waitingOf } from './state.js';
import { age, clock, cooldownEnd, grouped, lastDay, limitName, look, percent, plural, queueWords, short, stateKey, stateWords, usedUp } from './words.js';

export function mount(root, context) {
  const sentence = h('h1', { id: 'sentence' });
  const figures = ['calls/s', 'waiting', 'saved (cache, shared, merged)', '429s from providers, 24 h'].map((label, at) => figure(label, ['#/calls', '#/calls?decision=queue', '#/calls?source=saved', '#/events?kind=cooldown'][at]));
  // Built once: what is rebuilt while somebody points at it loses the focus and the click.
  const choices = ['all', 'attention'].map((name) => [name, h('a.button.chip', { role: 'button', href: `#/${name === 'all' ? '' : '?show=attention'}` })]);
  const chips = h('div.chips', { role: 'group', 'aria-label': 'Which providers' }, ...choices.map(([, chip]) => chip));
  const body = h('tbody');
  const table = h('div.table', null, h('table.phone-rows.fixed', null, h('thead', null, h('tr', null, ...['State', 'Provider', 'Tightest limit', 'Calls/s', 'Waiting', 'Hits', 'Last 429'].map((text, at) => h(`th${at > 3 ? '.num' : ''}${['', '', '', '.drop-2', '.drop-1', '.drop-3', '.drop-3'][at]}`, { scope: 'col' }, text, at === 4 ? h('span.mute', null, ' H/N/L') : null)))), body));
  const welcome = firstCall(context);
  const list = h('div', { id: 'providers' }, h('div.section', null, h('h2.grow', null, 'Providers'), chips), table);
  root.replaceChildren(sentence, h('div.figures', null, ...figures.map((one) => one.element)), welcome.element, list);

  function update() {
    if (!state.sample) return;
    askForHistory();
    const all = ranked();
    const bad = all.filter(needsAttention);
    const filter = context.params.get('show') || 'all';
    for (const [name, chip] of choices) {
      set(chip, 'aria-pressed', String(filter === name));
      put(chip, `${name} ${name === 'all' ? all.length : bad.length}`);
    }
    const started = context.config && context.config.started;
    put(sentence, sentenceOf(all, bad, lastDay(started, now())));
    drawFigures(figures, all, lastDay(started, now(), true));
    const called = all.some((provider) => provider.started);
    hide(welcome.element, called);
    welcome.update(all);
    const text = (context.params.get('q') || '').toLowerCase();
    const shown = (filter === 'attention' ? bad : all).filter((provider) => provider.name.toLowerCase().includes(text));
    table.firstChild.setAttribute('aria-rowcount', String(shown.length));
    rows(body, windowed(body, shown), (one) => one.name, (one) => (one.spacer === undefined ? makeRow(one) : makeSpacer()), (row, one) => {
      if (one.spacer === undefined) updateRow(row, one);
      else row.firstChild.style.height = `${one.spacer}px`;
    });
  }
  // What the first rows did before the page was opened.
  let isAsked = false;
  function askForHistory() {
    if (isAsked) return;
    isAsked = true;
    const first = ranked().filter((one) => one.started).slice(0, 12);
    for (const { name } of first) get(`/v1/history?provider=${encodeURIComponent(name)}&span=1m`).then((history) => onProviderHistory(name, history)).catch(() => {});
  }
  const onScroll = () => { if (state.providers.size >= 60) context.schedule(); };
  addEventListener('scroll', onScroll, { passive: true });
  return { update, rows: () => [...body.querySelectorAll('tr.link')], leave: () => removeEventListener('scroll', onScroll) };
}

function figure(label, href) {
  const value = h('span');
  const note = h('small');
  const line = spark(`${label}, last 60 seconds`);
  const title = h('div.label', null, label);
  const element = h('a.figure', { href }, title, h('div.value', null, value, note), line.element);
  return { element, label: title, value, note, line };
}

function drawFigures([calls, waiting, saved, limited], all, day) {
  const { total } = state;
  put(calls.value, short(mean(total.calls.slice(-5))));
  const rejected = sum(total.rejected);
  put(calls.note, rejected ? `${grouped(rejected)} rejected in 60 s` : '');
  set(calls.element, 'href', rejected ? '#/calls?decision=reject' : '#/calls');
  calls.line.draw(total.calls);
  put(waiting.value, grouped(state.waiting));
  const busiest = all.reduce((most, one) => (waitingOf(one) > waitingOf(most || one) || !most ? one : most), null);
  put(waiting.note, state.waiting && busiest ? waitingNote(busiest, all.filter(waitingOf).length) : '');
  waiting.line.draw(total.waiting);
  const all60 = sum(total.saved) + sum(total.sent);
  put(saved.value, all60 ? percent(sum(total.saved) / all60) : '–');
  put(saved.note, all60 ? `${grouped(sum(total.saved))} in 60 s` : '');
  saved.line.draw(total.saved);
  put(limited.label, `429s from providers, ${day}`);
  put(limited.value, grouped(state.limited24h));
  const last = Math.max(0, ...all.map((one) => one.last_429 || 0));
  put(limited.note, last ? age(last, now()) : '');
  limited.line.draw(total.limited);
}

// When the busiest queue is done, and whose it is if there are several.
function waitingNote(provider, queues) {
  const { eta } = provider.queue;
  const whose = queues > 1 ? `${provider.name} ` : '';
  return eta === null ? `${whose}not sent now` : `${whose}done by ${clock(now() + eta)}`;
}

// What matters most, in one sentence.
function sentenceOf(all, bad, day) {
  if (!all.length) return 'No provider is configured yet.';
  const store = state.sample.store;
  if (store === 'lost') return 'The store is lost: permits are not counted.';
  const empty = all.find(usedUp);
  const queueOf = (provider) => (waitingOf(provider) ? `; ${queueWords(provider, now())}` : '');
  const busiest = all.reduce((most, one) => (!most || waitingOf(one) > waitingOf(most) ? one : most), null);
  const queue = state.waiting ? `; ${busiest.name}: ${queueWords(busiest, now())}` : '';
  const worst = bad.find((provider) => provider.state !== 'normal' || provider.hold);
  if (worst) {
    const until = worst.sleep_until || cooldownEnd(worst);
    const rest = bad.length > 1 ? ` ${bad.length - 1} more ${bad.length === 2 ? 'needs' : 'need'} attention.` : '';
    const { word } = look(stateKey(worst, store));
    return `${worst.name} is ${word.toLowerCase()}${until ? ` until ${clock(until)}` : ''}${queueOf(worst)}.${rest}`;
  }
  if (empty) {
    const { reset_at: until } = usedUp(empty);
    return `${empty.name} is used up (${limitName(usedUp(empty))})${until ? ` until ${clock(until)}` : ''}${queueOf(empty)}.`;
  }
  if (bad.length) return `${bad.map((one) => one.name).slice(0, 3).join(', ')}${bad.length > 3 ? ` and ${bad.length - 3} more` : ''} ${bad.length === 1 ? 'needs' : 'need'} attention: ${problemOf(bad[0])}${queue}.`;
  const refusals = state.limited24h ? `${plural(state.limited24h, '429')} ${day}` : `No refusals ${day}`;
  const started = all.filter((one) => one.started).length;
  if (!started) return `${plural(all.length, 'provider')} ready. No call so far.`;
  const free = all.filter((one) => one.enabled === false).length;
  return `${all.length === 1 && !free ? `${all[0].name} flows` : free ? `${all.length - free} flowing, ${free} not limited` : `All ${all.length} flowing`}${queue}. ${refusals}.`;
}

// Why a provider that flows is listed under attention.
function problemOf(provider) {
  if (provider.problems) return `${plural(provider.problems, 'problem')} in the file of ${provider.name}`;
  const alert = alertOf(provider);
  if (alert) return alert.text;
  return provider.last_429 ? `${provider.name} got a 429 ${age(provider.last_429, now())}` : `${provider.name} is ${look(stateKey(provider, state.sample.store)).word.toLowerCase()}`;
}

// Of hundreds of providers only the rows on the screen, and a few around, exist: the others are two spacers.
function windowed(body, shown) {
  if (shown.length < 60) return shown;
  const row = body.querySelector('tr.link');
  const height = (row && row.offsetHeight) || 37;
  const above = scrollY - (body.getBoundingClientRect().top + scrollY);
  const first = Math.max(0, Math.floor(above / height) - 8);
  const last = Math.min(shown.length, first + Math.ceil(innerHeight / height) + 16);
  const spacer = (name, count) => ({ name, spacer: Math.max(0, count * height) });
  return [spacer(' above', first), ...shown.slice(first, last), spacer(' below', shown.length - last)];
}

function makeSpacer() {
  return h('tr', { 'aria-hidden': 'true' }, h('td.spacer', { colspan: '7' }));
}

function makeRow(provider) {
  const parts = { shape: h('span.shape', { 'aria-hidden': 'true' }), word: h('span'), lane: lane(true), free: h('span.mute', { hidden: true }, 'no limit'), spark: spark('calls per second'), rate: h('a'), waiting: h('a'), hits: h('a'), last: h('a.mute') };
  const link = h('a.name', { title: provider.name, href: `#/provider/${encodeURIComponent(provider.name)}` }, provider.name);
  const row = h('tr.link', { onclick: (event) => { if (!event.target.closest('a')) location.hash = link.getAttribute('href'); } },
    h('td', null, h('span.state', null, parts.shape, parts.word)),
    h('td', null, link),
    h('td.wide', null, parts.lane.element, parts.free),
    h('td.drop-2', null, h('span.row', null, parts.spark.element, parts.rate)),
    h('td.num.drop-1', null, parts.waiting),
    h('td.num.drop-3', null, parts.hits),
    h('td.num.drop-3', null, parts.last));
  row.parts = parts;
  return row;
}

function updateRow(row, provider) {
  const { parts } = row;
  const key = stateKey(provider, state.sample.store);
  const { tone, shape } = look(key);
  parts.shape.parentElement.dataset.tone = tone;
  put(parts.shape, shape);
  const words = stateWords(provider, now(), state.sample.store);
  put(parts.word, words);
  if (parts.word.title !== words) parts.word.title = words;
  const limit = tightest(provider) || provider.limits[0];
  hide(parts.lane.element, !limit);
  hide(parts.free, Boolean(limit));
  put(parts.free, provider.started ? 'no limit' : '–');
  if (limit) drawLane(parts.lane, provider, limit, now(), true);
  const series = state.series.get(provider.name);
  parts.spark.draw(series.calls);
  const calls = `#/calls?provider=${encodeURIComponent(provider.name)}`;
  putLink(parts.rate, short(mean(series.calls.slice(-5))), calls);
  const { queue } = provider;
  const waits = waitingOf(provider);
  putLink(parts.waiting, waits ? waitingWords(queue) : '–', `${calls}&decision=queue`);
  const hits = sum(series.saved);
  putLink(parts.hits, hits + sum(series.misses) ? percent(hits / (hits + sum(series.misses))) : '–', `${calls}&source=saved`);
  putLink(parts.last, age(provider.last_429, now()), `#/events?kind=cooldown&provider=${encodeURIComponent(provider.name)}`);
}

// "1,788 low"; of several priorities all three.
function waitingWords(queue) {
  const some = ['high', 'normal', 'low'].filter((one) => queue[one]);
  return some.length === 1 ? `${grouped(queue[some[0]])} ${some[0]}` : `${grouped(queue.high)}/${grouped(queue.normal)}/${grouped(queue.low)}`;
}

// Before the first call: how to make it.
function firstCall(context) {
  let chosen = 0;
  let name = 'NAME';
  const code = h('code');
  const status = h('span.mute', { role: 'status' }, 'waiting for the first call…');
  const tabs = ['Base URL', 'Proxy', 'Library'].map((title, at) => h('button', { type: 'button', role: 'tab', onclick: () => { chosen = at; draw(); } }, title));
  const element = h('div.table', { hidden: true }, h('div.tabs', { role: 'tablist', 'aria-label': 'Ways to call' }, ...tabs), h('div.row', null, h('pre.grow', null, code), copyButton(() => code.textContent)), h('div.empty', null, status));
  function draw() {
    const gateway = (context.config && context.config.gateway) || '127.0.0.1:4290';
    tabs.forEach((tab, at) => tab.setAttribute('aria-selected', String(at === chosen)));
    const python = `pip install ./clients/python   # in Tollgate's repository; Rust: its docs/libraries.md\npython -c "import tollgate; tollgate.Client('${location.origin}').acquire('${name}').release()"`;
    put(code, [`curl -i http://${gateway}/${name}/`, `export http_proxy=http://${gateway}`, python][chosen]);
  }
  return { element, update(all) { name = all.length ? all[0].name : 'NAME'; draw(); } };
}

