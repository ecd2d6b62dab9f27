// 5 Events: what changed and who did it; the same kind within a minute folds.

import { h, hide, marked, put, rows, set } from './dom.js';
import { now, openAlerts, state } from './state.js';
import { clock, grouped, look, span, units } from './words.js';

const KINDS = { transition: 'states', degrade: 'quota', cooldown: '429s', alert: 'alerts', operator: 'operators', reload: 'reloads', store: 'store', guard: 'guards' };
const SHAPES = { info: ['○', 'info'], warning: ['▲', 'wait'], error: ['■', 'stop'] };

export function mount(root, context) {
  const list = h('ul.events');
  const empty = h('div.empty');
  const choices = ['', ...Object.keys(KINDS)].map((one) => [one, h('a.button.chip', { role: 'button', href: `#/events${one ? `?kind=${one}` : ''}` }, KINDS[one] || 'all')]);
  const chips = h('div.chips', { role: 'group', 'aria-label': 'Which events' }, ...choices.map(([, chip]) => chip));
  let held = null;
  const quiet = h('span.mute.grow');
  root.replaceChildren(h('div.row', null, h('h1', null, 'Events'), quiet, chips), h('div.table', null, list, empty));
  root.querySelector('.table').style.marginTop = '12px';

  function update() {
    const kind = context.params.get('kind') || '';
    const provider = context.params.get('provider');
    for (const [one, chip] of choices) set(chip, 'aria-pressed', String(one === kind));
    const shown = (held || state.events).filter((event) => !isEcho(event)).filter((event) => (!kind || event.kind === kind) && (!provider || event.provider === provider));
    const open = openEvents(shown).filter((event) => (!kind || kind === 'alert') && (!provider || event.provider === provider));
    const folded = fold([...open, ...shown.filter((event) => !open.includes(event))]).slice(0, 200);
    folded.forEach((one) => { one.isOpen = open.includes(one.event); });
    rows(list, folded, (one) => one.key, makeRow, updateRow);
    hide(empty, folded.length > 0);
    const isAlert = kind === 'alert' ? 'Alerts appear here once the provider’s file sets `alerts`.' : '';
    put(empty, kind || provider ? `No such event. ${isAlert}` : quietWords(state.events, context.config && context.config.started));
    put(quiet, kind || provider || open.length || !folded.length ? '' : quietWords([folded[0].event]));
  }
  return { update, rows: () => [...list.children], onSelect: (row) => { held = row ? held || [...state.events] : null; if (!row) update(); } };
}

// "Quiet for 3 d 4 h": since the newest event; without one since the daemon's start. Nothing is said about less than a minute.
export function quietWords(events, started) {
  const since = events.length ? events[0].ts : started || now();
  const what = events.length ? 'since the last event' : started ? 'since the start' : 'since this page was opened';
  const quiet = started || events.length ? now() - since : (performance.now() - state.startedAt) / 1000;
  return quiet < 60 && events.length ? '' : `Quiet for ${span(Math.max(1, Math.round(quiet)))} ${what}`;
}

// The alerts that fire: their events, or what stands for an event that is not listed any more, or never was here.
export function openEvents(events) {
  return openAlerts().map((one) => {
    const listed = events.find((event) => event.kind === 'alert' && event.alert === one.alert && event.status === 'firing');
    return listed || { ...one, id: `open ${one.alert}`, kind: 'alert', status: 'firing' };
  });
}

// An operator's command is listed itself; the state that follows from it says nothing new.
function isEcho(event) {
  return event.kind === 'transition' && event.text.endsWith(': by an operator');
}

// Newest first: neighbours of the same kind, provider and text within a minute become one.
function fold(events) {
  const out = [];
  for (const event of events) {
    const last = out[out.length - 1];
    const isSame = last && last.event.kind === event.kind && last.event.provider === event.provider && (event.kind !== 'transition' || last.event.to === event.to) && last.event.ts - event.ts < 60 && (event.kind === 'cooldown' || last.event.text === event.text) && event.status === last.event.status;
    if (isSame && event.kind !== 'operator') {
      last.count += 1;
      last.first = event.ts;
    } else out.push({ key: event.id, event, count: 1, first: event.ts });
  }
  return out;
}

// Alerts have large numbers; other texts may have paths.
function textOf(event) {
  const text = units(event.text);
  return event.kind === 'alert' ? text.replace(/\b\d{4,}\b/g, grouped) : text;
}

function makeRow({ event }) {
  const [shape, tone] = event.to ? [look(event.to).shape, look(event.to).tone] : SHAPES[event.level] || SHAPES.info;
  const count = h('span.pill');
  const open = h('span.pill', { 'data-tone': tone }, 'Open');
  // Alerts about a store name it as their provider; no provider has a name with a space.
  const who = event.provider && !event.provider.includes(' ') ? h('a.who', { href: `#/provider/${encodeURIComponent(event.provider)}` }, event.provider) : h('span.who.mute', null, event.provider || event.kind);
  const row = h('li', null, h('span.mono.mute.when', null, event.ts ? clock(event.ts) : 'before start'), h('span.shape', { 'data-tone': tone, 'aria-hidden': 'true' }, shape), who, h('span.text', null, h('span.sr', null, `${event.level}: `), ...marked(textOf(event))), h('span.pills', null, open, count));
  Object.assign(row, { count, isOpen: open });
  return row;
}

function updateRow(row, one) {
  hide(row.isOpen, !one.isOpen);
  hide(row.count, one.count < 2);
  put(row.count, `×${one.count}`);
}
