// 4 Calls: the log, newest first. It holds still while the pointer is on it. Filters live in the URL.

import { get } from './api.js';
import { copyButton, h, hide, marked, put, rows } from './dom.js';
import { CALLS_MAX, onOlderCalls, state } from './state.js';
import { clock, grouped, offset, span, units } from './words.js';

const SHOWN_MAX = 200;
// Above so many calls a second nobody reads along: fewer rows, twice a second.
const FAST = 100;
const SHOWN_FAST = 30;
// A frame adds so many rows to the list at most: 200 at once took 80 ms.
const GROWS_BY = 20;
// Calls that needed no permit of their own.
const SAVED = ['cache', 'stale', 'shared', 'merged'];
const SOURCES = ['upstream', 'saved', ...SAVED, 'tollgate'];
// Colour means a state: where a response comes from is none, unless it is old or there is none.
const TONES = { stale: 'stale', tollgate: 'stop' };

export function mount(root, context) {
  const { params } = context;
  const field = (name, label, values) => {
    const control = values
      ? h('select', { 'aria-label': label, onchange: () => set(name, control.value) }, h('option', { value: '' }, label), ...values.map((value) => h('option', { value }, value)))
      : h('input', { type: 'search', placeholder: 'filter: path, id, caller', 'aria-label': 'Filter calls', oninput: () => set(name, control.value) });
    control.value = params.get(name) || '';
    return control;
  };
  const names = [...new Set([...state.providers.keys(), params.get('provider')].filter(Boolean))].sort();
  const callers = [...new Set([...state.calls.map((call) => call.caller || 'default'), params.get('caller')].filter(Boolean))].sort();
  const text = field('q', 'Filter');
  text.id = 'filter';
  const selects = [field('provider', 'every provider', names), field('caller', 'every caller', callers), field('source', 'every source', SOURCES), field('decision', 'every decision', ['allow', 'queue', 'reject'])];
  const body = h('tbody');
  const count = h('span.mute');
  const newer = h('button.newer', { type: 'button', hidden: true, onclick: () => { held = null; update(true); } });
  const empty = h('div.empty');
  const table = h('div.table.scroll', null, callTable(body), empty);
  root.replaceChildren(h('h1', null, 'Calls'), h('div.filters', null, text, ...selects, count), newer, table);
  context.stream.want('decision', true);
  let held = null;
  let isFast = false;
  let shownMax = 0;
  let drawnAt = 0;
  let counted = { at: performance.now(), seen: state.callsSeen };
  // An empty list has nothing to hold: its first calls are shown.
  table.addEventListener('mouseenter', () => { if (body.firstChild) held = { shown: [...matching()], seen: state.callsSeen }; });
  table.addEventListener('mouseleave', () => { if (!body.querySelector('.at')) { held = null; update(true); } });

  function set(name, value) {
    if (value) params.set(name, value);
    else params.delete(name);
    context.replaceParams(params);
    held = null;
    shownMax = 0;
    update(true);
  }
  function* matching() {
    let left = shownMax;
    const wanted = (params.get('q') || '').toLowerCase();
    for (const call of state.calls) {
      if (!left) return;
      if (params.get('provider') && call.provider !== params.get('provider')) continue;
      if (params.get('source') && !isFrom(call, params.get('source'))) continue;
      if (params.get('decision') && call.decision !== params.get('decision')) continue;
      if (params.get('caller') && (call.caller || 'default') !== params.get('caller')) continue;
      if (wanted && !`${call.path} ${call.id} ${call.caller || 'default'} ${call.status} ${call.reason || ''}`.toLowerCase().includes(wanted)) continue;
      left -= 1;
      yield call;
    }
  }
  function update(isForced) {
    const at = performance.now();
    if (at - counted.at > 1000) {
      isFast = ((state.callsSeen - counted.seen) * 1000) / (at - counted.at) > FAST;
      counted = { at, seen: state.callsSeen };
    }
    if (isFast && !isForced && at - drawnAt < 500) return;
    drawnAt = at;
    shownMax = isFast ? SHOWN_FAST : Math.min(SHOWN_MAX, shownMax + GROWS_BY);
    const shown = held ? held.shown : [...matching()];
    rows(body, shown, (call) => call.id, (call) => callRow(call, () => openSheet(call)), () => {});
    const fresh = held ? state.callsSeen - held.seen : 0;
    hide(newer, fresh === 0);
    put(newer, `${grouped(fresh)} new ↑`);
    put(count, `${shown.length >= shownMax ? `the newest ${shown.length}` : grouped(shown.length)} of ${grouped(Math.min(state.callsSeen, CALLS_MAX))} seen`);
    hide(empty, shown.length > 0);
    hide(body.parentElement, shown.length === 0);
    put(empty, state.calls.length ? 'No call matches the filters.' : 'Waiting for calls…');
    if (!isFast && !held && shown.length >= shownMax && shownMax < SHOWN_MAX) context.schedule();
  }
  // Older calls, where the daemon keeps them.
  const of = params.get('provider') ? `&provider=${encodeURIComponent(params.get('provider'))}` : '';
  get(`/v1/decisions?limit=500${of}`).then((reply) => {
    onOlderCalls(reply.decisions || []);
    // They did not come now: the list is not fast.
    counted = { at: performance.now(), seen: state.callsSeen };
    isFast = false;
    update(true);
  }).catch(() => {});
  return {
    update,
    rows: () => [...body.children],
    // The list holds still while a row is selected.
    onSelect(row) {
      held = row ? held || { shown: [...matching()], seen: state.callsSeen } : null;
      update(true);
    },
    leave: () => context.stream.want('decision', false),
  };
}

function isFrom(call, source) {
  return source === 'saved' ? SAVED.includes(call.source) : call.source === source;
}

// The table of calls, here and on the page of a provider.
export function callTable(body) {
  const titles = [['Time', ''], ['Id', '.drop-1'], ['Caller', '.drop-2'], ['Call', ''], ['Source', ''], ['Wait', '.num.drop-1'], ['Tries', '.num.drop-3'], ['Status', '.num']];
  return h('table.log.phone-rows', null, h('thead', null, h('tr', null, ...titles.map(([title, more]) => h(`th${more}`, { scope: 'col' }, title)))), body);
}

export function callRow(call, open, isOne) {
  const tone = call.status === null ? 'mute' : call.status === 429 ? 'wait' : call.status >= 500 || call.source === 'tollgate' ? 'stop' : 'text';
  const row = h('tr.link', { tabindex: '-1', onclick: open },
    h('td.mono', null, clock(call.ts)),
    h('td.mono.mute.drop-1', null, call.id.slice(-8)),
    h('td.drop-2', null, call.caller || 'default'),
    h('td.mono.wide', { title: call.path }, isOne ? null : h('span.mute', null, `${call.provider || '?'} `), `${call.method || ''} ${call.path || call.entity || ''}`),
    h('td', null, h('span.pill', { 'data-tone': TONES[call.source] || 'mute' }, call.source)),
    h('td.num.mono.drop-1', null, call.wait ? span(call.wait) : '–'),
    h('td.num.drop-3', null, call.attempts || '–'),
    h('td.num.mono', null, h('button.quiet.tone', { type: 'button', 'data-tone': tone, 'aria-label': `${call.method || 'permit'} ${call.path || call.entity || call.provider || ''}: status ${call.status || 'none'}, why` }, statusOf(call))));
  row.open = open;
  return row;
}

const REASONS = { limit: 'limit', cooldown: 'cool-down', sleep: 'sleeping', degraded: 'saving quota', cache_only: 'cache only', concurrency: 'at a time', queue_full: 'queue full', deadline: 'too late', paused: 'paused', client_gone: 'left', off_peak: 'off-peak', store_lost: 'store lost', shutdown: 'shutdown', too_costly: 'too costly' };

function reasonOf(call) {
  return REASONS[call.reason] || (call.reason || '').replaceAll('_', ' ');
}

// Why Tollgate rejected it stands beside the status.
function statusOf(call) {
  const isRejected = call.decision === 'reject' || call.source === 'tollgate';
  const why = call.reason && (isRejected || !call.status) ? reasonOf(call) : '';
  return [call.status, why].filter(Boolean).join(' ') || '–';
}

// What became of it, in a few words.
function verdictOf(call) {
  const cause = [reasonOf(call), call.limit].filter(Boolean).join(' ');
  if (call.decision === 'reject') return `Rejected: ${cause || 'see below'}`;
  if (call.source === 'cache' || call.source === 'stale') return call.source === 'cache' ? 'From the cache' : 'From the cache, stale';
  if (call.source === 'shared' || call.source === 'merged') return 'Shared the response of another call';
  if (call.status === null) return cause ? `No response: ${cause}` : 'No response';
  return call.decision === 'queue' ? `Waited ${span(call.wait)}: ${cause}` : 'Sent at once';
}

const STEP_TONES = { queued: 'mute', joined: 'mute', queue: 'ok', allow: 'ok', sent: 'mute', response: 'ok', cooldown: 'wait', retry: 'wait', failed: 'stop', cache: 'ok', stale: 'stale', reject: 'stop', end: 'text' };
const STEP_SHAPES = { queued: '▒', joined: '▒', queue: '●', allow: '●', sent: '→', response: '✓', cooldown: '◐', retry: '▒', failed: '✗', cache: '▤', stale: '▤', reject: '■', end: '○' };

// A response may be a failure: its status is in its sentence.
function lookOf(step) {
  const status = step.kind === 'response' ? Number((/ with (\d{3})\b/.exec(step.text) || [])[1]) : 0;
  if (status === 429) return { tone: 'wait', shape: '◐' };
  if (status >= 500) return { tone: 'stop', shape: '✗' };
  return { tone: STEP_TONES[step.kind] || 'mute', shape: STEP_SHAPES[step.kind] || '·' };
}

// What the call did before each step: it waited for a permit, for the call of another, or for its next attempt
// (hatched), or the provider worked. A rejection takes no time: it ends the wait.
function piecesOf(steps, end) {
  let before = { at: 0, kind: '' };
  return steps.flatMap((step) => {
    const time = Math.max(0, step.at - before.at);
    const isRejected = step.kind === 'reject';
    const isWait = before.kind === 'retry' || isRejected || ['queued', 'joined', 'queue'].includes(step.kind);
    before = step;
    // Above one in all: less would leave the rest of the bar empty.
    const wide = Math.max(1, (100 * time) / end);
    const piece = { kind: step.kind, look: isWait ? 'wait' : 'work', tone: lookOf(step).tone, wide, text: step.text };
    return isRejected ? [{ ...piece, kind: 'queued' }, { ...piece, look: 'work', wide: time < 0.01 ? 100 : 6 }] : [piece];
  });
}

// The timeline of one call: the same as `tollgate why`.
export function openSheet(call) {
  closeSheet();
  const from = document.activeElement;
  // Steps carry the time of day; the sheet shows the time since the call began.
  const ended = (call.steps || []).length ? call.steps[call.steps.length - 1].at : call.ts;
  const began = Math.min(...(call.steps || []).map((step) => step.at), ended - (call.wait || 0));
  const steps = (call.steps || []).map((step) => ({ ...step, at: Math.max(0, step.at - began) }));
  const end = steps.length ? Math.max(0.001, steps[steps.length - 1].at) : 0.001;
  const bar = h('div.timeline', { role: 'img', 'aria-label': `${span(end)} in all` });
  for (const one of piecesOf(steps, end)) {
    const piece = h('span', { 'data-kind': one.kind, 'data-tone': one.tone, 'data-look': one.look, title: one.text });
    piece.style.flexGrow = String(one.wide);
    bar.append(piece);
  }
  const close = h('button.quiet', { type: 'button', 'aria-label': 'Close', onclick: () => closeSheet() }, 'Close');
  const facts = [['provider', call.provider], ['entity', call.entity], ['caller', call.caller || 'default'], ['priority', call.priority], ['decision', `${call.decision}${call.reason ? `: ${reasonOf(call)}` : ''}${call.limit ? ` (${call.limit})` : ''}`], ['source', call.source], ['wait', span(call.wait)], ['attempts', call.attempts], ['status', call.status], ['id', call.id]];
  const isModal = innerWidth < 720;
  const sheet = h('aside.sheet', { role: 'dialog', 'aria-modal': isModal ? 'true' : null, 'aria-label': `Call ${call.id}` },
    h('div.row', null, h('h2.grow', null, verdictOf(call)), close),
    h('p.mono', null, `${call.method || ''} ${call.path || ''}`),
    bar, h('p.mute', null, `${clock(call.ts)}, ${span(end)} in all, ${span(call.wait)} of it waiting`),
    h('ol.steps', null, ...steps.map((step) => h('li', null, h('span.mono.mute', null, `+${offset(step.at)}`), h('span.shape', { 'data-tone': lookOf(step).tone, 'aria-hidden': 'true' }, lookOf(step).shape), h('span', null, ...marked(units(step.text)))))),
    h('dl', null, ...facts.filter(([, value]) => value !== null && value !== undefined).flatMap(([name, value]) => [h('dt', null, name), h('dd', null, String(value))])),
    h('div.row', null, h('code', null, `tollgate why ${call.id}`), copyButton(`tollgate why ${call.id}`)));
  sheet.from = from;
  document.body.append(sheet);
  // On a phone it covers everything: what is behind it cannot be reached.
  document.getElementById('app').inert = isModal;
  close.focus();
}

export function closeSheet() {
  const sheet = document.querySelector('.sheet');
  if (!sheet) return false;
  sheet.remove();
  document.getElementById('app').inert = false;
  if (sheet.from && sheet.from.isConnected) sheet.from.focus();
  return true;
}
