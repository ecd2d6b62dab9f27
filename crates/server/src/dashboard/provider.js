// 2 Provider: why it is in its state, every lane, charts, who waits, what the endpoints do, the last calls.

import { change, get } from './api.js';
import { Chart } from './chart.js';
import { callRow, callTable, openSheet } from './calls.js';
import { h, hide, put, rows, set } from './dom.js';
import { drawLane, estimatedLane, lane } from './lane.js';
import { now, onOlderCalls, state, waitingOf } from './state.js';
import { clock, depth, etaOf, grouped, look, percent, plural, queueWords, reason, short, span, stateKey, stateWords, windowWords } from './words.js';

const SPANS = ['5m', '1h', '24h'];

export function mount(root, context) {
  const { name } = context;
  const path = `/v1/providers/${encodeURIComponent(name)}`;
  const shape = h('span.shape', { 'aria-hidden': 'true' });
  const word = h('span');
  const why = h('p.mute');
  const stateBox = h('span.state', null, shape, word);
  const acts = actions(name, path, context);
  const lanes = h('div.lanes');
  const noLimits = h('div.table', { hidden: true }, h('div.empty', null, 'No limit is configured. Tollgate learns from 429s and from the headers of responses; add ', h('code', null, 'limits:'), ' to the provider’s file to avoid them.'));
  const charts = [
    new Chart('Sent per second', [
      { label: 'high', tone: 'text', of: (history) => rate(history, history.sent_high) },
      { label: 'normal', tone: 'mute', of: (history) => rate(history, history.sent_normal) },
      { label: 'low', tone: 'dim', of: (history) => rate(history, history.sent_low) },
    ], { stack: true }),
    new Chart('Wait for a permit', [
      { label: 'p50', tone: 'mute', of: (history) => waits(history, history.wait_p50_ms) },
      { label: 'p99', tone: 'text', of: (history) => waits(history, history.wait_p99_ms) },
    ], { format: span, empty: 'nobody waited in this time' }),
    new Chart('Responses per second', [
      { label: 'ok', tone: 'ok', of: (history) => rate(history, history.success) },
      { label: 'cache', tone: 'text', of: (history) => rate(history, history.saved) },
      { label: '4xx', tone: 'mute', of: (history) => rate(history, history.other) },
      { label: 'failed', tone: 'stop', of: (history) => rate(history, history.failed) },
      { label: '429', tone: 'wait', of: (history) => rate(history, history.limited) },
    ], { stack: true }),
  ];
  const choices = SPANS.map((one) => [one, h('button.chip', { type: 'button', onclick: () => { chosen = one; drawSpans(); loadHistory(); } }, one)]);
  const spans = h('div.chips', { role: 'group', 'aria-label': 'Time shown' }, ...choices.map(([, chip]) => chip));
  const queue = h('tbody');
  const queueNote = h('p.mute.note');
  const endpoints = h('tbody');
  const endpointsEmpty = h('div.empty', null, 'Nothing is counted per endpoint. ', h('code', null, 'per: entity'), ' in a limit, or ', h('code', null, 'entities.ttl'), ', makes them visible.');
  const lastCalls = h('tbody');
  const callsEmpty = h('div.empty', null, 'No call so far.');
  root.replaceChildren(
    h('div.head', null, h('div.what', null, h('h1', null, h('span', null, name), stateBox), why), acts.element),
    lanes, noLimits,
    h('div.section', null, h('h2.grow', null, 'History'), spans),
    charts[0].element, h('div.charts-2', null, charts[1].element, charts[2].element),
    h('div.columns', null,
      h('section', null, h('h2', null, 'Waiting, by caller'), h('div.table.scroll', null, h('table', null, head('Caller', 'Waiting', '', 'Done in', 'Sent'), queue)), queueNote),
      h('section', null, h('h2', null, 'Endpoints'), h('div.table.scroll', null, h('table', null, head('Endpoint', 'Remaining', 'Cool-down', 'TTL', 'Hits'), endpoints), endpointsEmpty))),
    h('div.section', null, h('h2.grow', null, 'Last calls'), h('a.mute', { href: `#/calls?provider=${encodeURIComponent(name)}` }, 'all calls')),
    h('div.table.scroll', null, callTable(lastCalls), callsEmpty));
  context.stream.want('decision', true);

  let chosen = context.params.get('span') || '5m';
  let details = null;
  let history = null;
  async function loadHistory() {
    try {
      history = await get(`/v1/history?provider=${encodeURIComponent(name)}&span=${chosen}`);
      drawCharts();
    } catch (error) {
      put(why, error.message);
    }
  }
  function drawCharts() {
    if (!history || !root.isConnected) return;
    const provider = state.providers.get(name);
    const limit = provider && smoothLimit(provider);
    charts[0].draw(history, limit);
    charts[1].draw(history);
    charts[2].draw(history);
  }
  function drawSpans() {
    for (const [one, chip] of choices) set(chip, 'aria-pressed', String(one === chosen));
  }
  async function loadDetails() {
    try {
      const of = `provider=${encodeURIComponent(name)}`;
      const [provider, cache, callers, counts] = await Promise.all([get(path), get(`/v1/cache?${of}`), get('/v1/callers'), get(`/api/rate-limit/metrics?${of}`).catch(() => null)]);
      details = { provider, cache, counts: counts ? Object.values(counts.metrics.entities) : [], used: callers.providers.find((one) => one.name === name) || { callers: [] } };
      drawDetails();
    } catch (error) {
      if (error.status === 404) put(why, `${error.message} ${error.hint}`);
    }
  }
  function drawDetails() {
    if (!root.isConnected) return;
    // The queue as the rest of the page shows it: from the last sample.
    const { queue: all } = state.providers.get(name) || {};
    if (!all) return;
    const callers = details.used.callers.map((one) => ({ ...one, ...(all.callers[one.name] || { waiting: 0, starved: 0, eta: 0 }) }));
    const most = Math.max(1, ...callers.map((one) => one.waiting));
    const waiting = callers.filter((one) => one.waiting || one.sent).sort((a, b) => b.waiting - a.waiting || b.sent - a.sent).slice(0, 12);
    rows(queue, waiting, (one) => one.name, makeQueueRow, (row, one) => updateQueueRow(row, one, most));
    const total = all.high + all.normal + all.low;
    const causes = Object.entries(all.waiting_for).map(([cause, count]) => `${plural(count, 'call waits', 'calls wait')} for ${CAUSES[cause] || cause}`).join(', ');
    const done = all.eta ? `; the last one is sent in about ${span(all.eta)}` : '';
    const starved = all.starved ? `; ${plural(all.starved, 'call is', 'calls are')} not sent while calls of higher priority take everything` : '';
    const window = details.used.window === undefined ? '' : ` Sent: ${windowWords(details.used, now())}.`;
    put(queueNote, `${total ? `${causes}${done}${starved}.` : 'Nobody waits.'}${window}`);
    const ttl = new Map(details.provider.settings.filter((one) => one.key.startsWith('entities.ttl.')).map((one) => [one.key.slice(13), one.value]));
    const stored = new Map(details.cache.stored.filter((one) => one.entity).map((one) => [one.entity, one]));
    const names = [...new Set([...Object.keys(details.provider.entities), ...ttl.keys(), ...stored.keys()])].sort();
    rows(endpoints, names.map((entity) => ({ entity, part: details.provider.entities[entity], ttl: ttl.get(entity), hits: details.counts.find((one) => one.entity === entity), stored: stored.get(entity) })), (one) => one.entity, makeEndpoint, updateEndpoint);
    hide(endpointsEmpty, names.length > 0);
    hide(endpoints.parentElement, names.length === 0);
  }

  drawSpans();
  get(`/v1/decisions?limit=50&provider=${encodeURIComponent(name)}`).then((reply) => { onOlderCalls(reply.decisions || []); context.schedule(); }).catch(() => {});
  loadHistory();
  loadDetails();
  const timers = [setInterval(() => { if (!document.hidden) loadHistory(); }, 2000), setInterval(() => { if (!document.hidden) loadDetails(); }, 3000)];

  function update() {
    const provider = state.providers.get(name);
    if (!provider) {
      put(why, state.sample ? 'This provider is not known (any more).' : '');
      return;
    }
    const key = stateKey(provider, state.sample.store);
    const { tone } = look(key);
    stateBox.dataset.tone = tone;
    put(shape, look(key).shape);
    put(word, stateWords(provider, now(), state.sample.store));
    const queueText = waitingOf(provider) ? ` ${queueWords(provider, now())}.` : '';
    put(why, reason(provider, now(), state.sample.store) + queueText + keysText(details && details.provider));
    const estimated = provider.estimated_limits || [];
    hide(lanes, provider.limits.length + estimated.length === 0);
    hide(noLimits, provider.limits.length + estimated.length > 0 || !provider.started);
    const shownLimits = hideTemplates(provider.limits);
    rows(lanes, [...shownLimits, ...estimated.map((one) => ({ ...one, isEstimate: true, name: 'estimate', entity: one.of }))], (one) => `${one.entity || ''}|${one.key || ''}|${one.name}`, (one) => {
      if (one.isEstimate) return estimatedLane();
      const parts = lane(false);
      parts.element.parts = parts;
      return parts.element;
    }, (element, limit) => (element.draw ? element.draw(limit) : drawLane(element.parts, provider, limit, now(), false)));
    acts.update(provider, key);
    if (details) drawDetails();
    const mine = state.calls.filter((call) => call.provider === name).slice(0, 50);
    rows(lastCalls, mine, (call) => call.id, (call) => callRow(call, () => openSheet(call), true), () => {});
    hide(callsEmpty, mine.length > 0);
  }
  return {
    update,
    rows: () => [...lastCalls.children],
    leave() {
      timers.forEach(clearInterval);
      charts.forEach((chart) => chart.destroy());
      context.stream.want('decision', false);
      acts.leave();
    },
    redraw: drawCharts,
    commands: () => acts.commands(),
  };
}

// Keys of a pool that are not used at present.
function keysText(provider) {
  const aside = ((provider && provider.keys) || []).filter((one) => one.reason);
  return aside.map((one) => ` Key ${one.key} is set aside until ${clock(one.set_aside_until)}: ${one.reason}.`).join('');
}

function head(...titles) {
  return h('thead', null, h('tr', null, ...titles.map((title) => h(`th${['Waiting', 'Sent', 'Done in', 'Remaining', 'Hits'].includes(title) ? '.num' : ''}`, { scope: 'col' }, title || h('span.sr', null, 'share')))));
}

function rate(history, values) {
  return values.map((value) => value / history.every);
}

// Where nothing was sent, nobody waited: a gap, not a zero.
function waits(history, values) {
  const isSent = (at) => history.sent_high[at] + history.sent_normal[at] + history.sent_low[at] > 0;
  return values.map((millis, at) => (isSent(at) ? millis / 1000 : null));
}

// A limit for each entity is shown by the lanes of the entities, once there are any.
function hideTemplates(limits) {
  const hasOwn = new Set(limits.filter((one) => one.entity).map((one) => one.name));
  return limits.filter((one) => one.entity || one.per !== 'entity' || !hasOwn.has(one.name));
}

const CAUSES = { limit: 'a limit', estimated_limit: 'the pace learned from 429s', concurrency: 'a free slot', cooldown: 'a cool-down', sleep: 'the provider to recover', paused: 'an operator', offline: 'an operator', retry: 'the next try', off_peak: 'off-peak hours', store: 'the store', store_lost: 'the store' };

// The line that sent calls may not cross for long: the smallest limit per second.
function smoothLimit(provider) {
  const rates = provider.limits.filter((one) => !one.entity && one.period > 0 && one.period <= 60).map((one) => one.limit / one.period);
  return rates.length ? Math.min(...rates) : null;
}

function makeQueueRow(one) {
  const parts = { count: h('td.num'), bar: h('i'), eta: h('td.num.eta'), sent: h('td.num.mute') };
  const row = h('tr', null, h('td', null, h('a', { href: `#/calls?caller=${encodeURIComponent(one.name)}` }, one.name)), parts.count, h('td.wide', null, h('span.bar', null, parts.bar)), parts.eta, parts.sent);
  row.parts = parts;
  return row;
}

function updateQueueRow(row, one, most) {
  put(row.parts.count, one.waiting ? grouped(one.waiting) : '–');
  put(row.parts.eta, etaOf(one));
  row.parts.bar.style.transform = `scaleX(${one.waiting / most})`;
  put(row.parts.sent, short(one.sent));
}

function makeEndpoint(one) {
  const parts = { left: h('td.num'), cool: h('td'), ttl: h('td.mono'), hits: h('td.num.mute') };
  const row = h('tr', null, h('td.mono', null, one.entity), parts.left, parts.cool, parts.ttl, parts.hits);
  row.parts = parts;
  return row;
}

function updateEndpoint(row, one) {
  const limit = one.part && one.part.limits[0];
  put(row.parts.left, limit && limit.remaining !== null ? `${grouped(limit.remaining)} / ${grouped(depth(limit))}` : '–');
  const until = one.part && one.part.cooldown_until;
  put(row.parts.cool, until && until > now() ? span(until - now()) : one.part && one.part.degraded ? 'saving quota' : '–');
  put(row.parts.ttl, one.ttl || '–');
  const looked = one.hits ? one.hits.cache_hits + one.hits.cache_misses : 0;
  put(row.parts.hits, looked ? percent(one.hits.cache_hits / looked) : '–');
  row.parts.hits.title = one.stored ? `${plural(one.stored.responses, 'response')} stored` : '';
}

// The buttons, their result, and undo.
function actions(name, path, context) {
  const result = h('div.result', { role: 'status' });
  const reasonText = () => context.refusal() || '';
  const whyOff = h('span.mute', { id: 'why-off' });
  const act = (title, request, undo, confirmText) => ({ title, request, undo, confirmText });
  const pauseFor = (title, query) => act(title, () => change('POST', `${path}/pause${query}`), 'former');
  const pauses = [pauseFor('Pause 15 m', '?for=15m'), pauseFor('Pause 1 h', '?for=1h'), pauseFor('Pause until resumed', '')];
  const cacheOnly = act('Cache only', () => change('POST', `${path}/cache-only`), 'former');
  const resume = act('Resume', () => change('POST', `${path}/resume`), 'former');
  const reset = act('Reset', () => change('POST', `${path}/reset`), null, 'Clear failures, cool-downs and degrade modes?');
  const purge = act('Purge', () => change('DELETE', `/v1/cache?provider=${encodeURIComponent(name)}`), null, 'Delete every cached response of this provider?');
  let former = null;
  let timer = 0;

  function show(...children) {
    clearTimeout(timer);
    result.replaceChildren(...children);
    timer = setTimeout(() => result.replaceChildren(), 5000);
  }
  async function run(one) {
    context.note(`${one.title} ${name}`);
    try {
      const before = former;
      const done = await one.request();
      const text = done.purged === undefined ? `${one.title}: done` : `${plural(done.purged, 'response')} deleted`;
      const undo = one.undo === 'former' && before !== 'offline' ? before || 'resume' : null;
      show(h('span', null, text), ...(undo ? [h('button.quiet', { type: 'button', onclick: () => undoWith(undo) }, 'Undo')] : []));
    } catch (error) {
      show(h('span.tone', { 'data-tone': 'stop' }, `${one.title} failed: ${error.message}${error.hint ? `; ${error.hint}` : ''}`));
    }
  }
  async function undoWith(command) {
    try {
      await change('POST', `${path}/${command}`);
      show(h('span', null, 'Undone'));
    } catch (error) {
      show(h('span.tone', { 'data-tone': 'stop' }, error.message));
    }
  }
  function ask(one) {
    if (!one.confirmText) return run(one);
    clearTimeout(timer);
    result.replaceChildren(h('span', null, one.confirmText), h('button', { type: 'button', onclick: () => run(one) }, `Yes, ${one.title.toLowerCase()}`), h('button.quiet', { type: 'button', onclick: () => result.replaceChildren() }, 'No'));
    result.querySelector('button').focus();
    return undefined;
  }
  const list = h('ul', { role: 'menu', hidden: true }, ...pauses.map((one) => h('li', { role: 'none' }, h('button', { type: 'button', role: 'menuitem', onclick: () => { toggle(false); ask(one); } }, one.title.replace('Pause ', '')))));
  const opener = h('button', { type: 'button', 'aria-haspopup': 'menu', 'aria-expanded': 'false', onclick: () => toggle(list.hidden) }, 'Pause ▾');
  function toggle(isOpen) {
    hide(list, !isOpen);
    opener.setAttribute('aria-expanded', String(isOpen));
    if (isOpen) list.querySelector('button').focus();
  }
  list.addEventListener('keydown', (event) => {
    const items = [...list.querySelectorAll('button')];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
    }
    if (event.key === 'Escape') { toggle(false); opener.focus(); event.stopPropagation(); }
  });
  const onClick = (event) => { if (!list.hidden && !list.parentElement.contains(event.target)) toggle(false); };
  document.addEventListener('click', onClick);
  const button = (one) => h('button', { type: 'button', onclick: () => ask(one) }, one.title);
  const buttons = { cacheOnly: button(cacheOnly), resume: button(resume), reset: button(reset), purge: button(purge) };
  const element = h('div.actions', null, h('div.menu', null, opener, list), ...Object.values(buttons), whyOff, result);
  return {
    element,
    leave: () => document.removeEventListener('click', onClick),
    update(provider, key) {
      // What undo restores: the command that holds it now, and what remains of its time.
      const left = provider.sleep_until ? `?for=${Math.max(1, Math.round(provider.sleep_until - now()))}s` : '';
      former = provider.hold === 'paused' ? `pause${left}` : provider.hold === 'cache_only' ? `cache-only${left}` : provider.hold;
      const refusal = reasonText();
      for (const one of [opener, ...Object.values(buttons)]) {
        one.disabled = Boolean(refusal);
        one.title = refusal;
      }
      buttons.resume.disabled = Boolean(refusal) || ['normal', 'idle', 'unlimited'].includes(key);
      put(whyOff, refusal ? `Off: ${refusal}` : '');
      for (const one of [opener, ...Object.values(buttons)]) set(one, 'aria-describedby', refusal ? 'why-off' : null);
      if (!refusal) buttons.resume.title = buttons.resume.disabled ? 'calls flow already' : 'send calls again';
    },
    commands: () => (reasonText() ? [] : [...pauses, cacheOnly, resume, reset, purge].map((one) => ({ title: `${one.title}: ${name}`, run: () => ask(one) }))),
  };
}

