// The shell: routes, rail, top bar, live stream, keys. Views are modules with mount() → { update, leave }.

import { Stream, change, get } from './api.js';
import { closeSheet } from './calls.js';
import * as callers from './callers.js';
import * as calls from './calls.js';
import { h, hide, put, rows, set, svg } from './dom.js';
import * as events from './events.js';
import * as overview from './overview.js';
import { openHelp, openPalette } from './palette.js';
import * as provider from './provider.js';
import * as setup from './setup.js';
import { now, onCall, onEvent, onHistory, onSample, ranked, share, state, tightest } from './state.js';
import { grouped, look, percent, plural, span, stateKey } from './words.js';

const ICONS = {
  overview: 'M2.5 2.5h4v5h-4zM9.5 2.5h4v3h-4zM9.5 8.5h4v5h-4zM2.5 10.5h4v3h-4z',
  providers: 'M2.5 3h11v3h-11zM2.5 10h11v3h-11zM5 4.5h.01M5 11.5h.01',
  callers: 'M8 8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3 13.5c.4-2.6 2.4-4 5-4s4.6 1.4 5 4',
  calls: 'M2.5 4h11M2.5 8h11M2.5 12h7',
  events: 'M8 1.8v3M8 11.2v3M1.8 8h3M11.2 8h3M8 8h.01',
  setup: 'M2.5 4.5h6M11.5 4.5h2M2.5 11.5h2M7.5 11.5h6M10 3v3M6 10v3',
};
const VIEWS = [
  ['overview', 'Overview', '#/', 'g o', overview],
  ['callers', 'Callers', '#/callers', 'g c', callers],
  ['calls', 'Calls', '#/calls', 'g l', calls],
  ['events', 'Events', '#/events', 'g e', events],
  ['setup', 'Setup', '#/setup', 'g s', setup],
];
const RAIL_MAX = 24;
// The most changes of one second that are read aloud.
const ANNOUNCED_MAX = 5;

const $ = (id) => document.getElementById(id);
const main = $('main');
let view = null;
let current = '';
let selected = null;
let isDirty = false;
let isSignedOut = false;
const context = { config: null };

// --- the stream: frames are drawn once per animation frame, whatever arrives ---

const stream = new Stream((kind, text) => {
  const data = JSON.parse(text);
  if (kind === 'sample') {
    const before = new Map([...state.providers].map(([name, one]) => [name, stateKey(one, state.sample.store)]));
    onSample(data);
    announce(before);
  } else if (kind === 'decision') onCall(data);
  else if (kind === 'lost') state.lostCalls += data.count;
  else onEvent({ ...data, kind: data.kind || kind });
  schedule();
}, (link, error) => {
  state.link = link;
  if (link === 'refused') signIn(error);
  schedule();
});
context.stream = stream;
context.schedule = () => schedule();
context.note = (text) => { state.lastCommand = text; };
context.refusal = () => (isSignedOut ? 'sign in with the admin token first' : state.link === 'lost' ? 'the daemon does not answer' : '');

function schedule() {
  if (isDirty) return;
  isDirty = true;
  requestAnimationFrame(() => {
    isDirty = false;
    draw();
  });
}

function draw() {
  if (isSignedOut) return;
  drawBar();
  drawRail();
  if (view) view.update();
  drawTitle();
}

// Countdowns and the age of lost data go on without samples.
setInterval(() => {
  const lag = state.sample ? (performance.now() - state.receivedAt) / 1000 : 0;
  const isStale = !isSignedOut && (lag > 3.5 || (state.link === 'lost' && state.sample !== null));
  document.body.classList.toggle('is-stale', isStale);
  hide($('stale'), !isStale);
  // Announced once; the seconds are for the eyes.
  put(staleText, isStale ? 'The daemon does not answer: reconnecting' : '');
  if (isStale) put(staleAge, `${span(Math.round(lag))} old, reconnecting`);
}, 500);

function announce(before) {
  if (!before.size) return;
  const changes = [];
  for (const [name, one] of state.providers) {
    const key = stateKey(one, state.sample.store);
    if (before.has(name) && before.get(name) !== key) changes.push(`${name}: ${look(key).word}`);
  }
  // One text for all: the next would replace it before it is read. Of many, some and how many.
  const shown = changes.slice(0, ANNOUNCED_MAX).join(', ');
  if (changes.length) put($('announce'), changes.length > ANNOUNCED_MAX ? `${shown} and ${changes.length - ANNOUNCED_MAX} more` : shown);
}

const [staleText, staleAge] = $('stale').children;

// --- the shell ---

const facts = h('div.facts');
const themeButton = h('button.icon', { type: 'button', 'aria-label': 'Light or dark', title: 'Light or dark (t)', onclick: () => theme(true) }, '◑');
$('bar').append(facts, h('button', { type: 'button', onclick: () => palette(), 'aria-label': 'Commands' }, h('span.long', null, 'Commands '), h('span.short', { 'aria-hidden': 'true' }, '⌕'), h('kbd', { 'aria-hidden': 'true' }, 'Ctrl K')), themeButton);
const parts = { providers: h('b'), waiting: h('b'), store: h('span'), live: h('span.state') };
const known = h('span', { hidden: true }, h('span.wide-only', null, parts.providers, ' · '), parts.waiting, ' · ', parts.store, ' · ');
facts.append(known, parts.live);

function drawBar() {
  if (!state.sample) {
    put(parts.live, state.link === 'lost' ? 'no connection' : 'connecting…');
    return;
  }
  hide(known, false);
  put(parts.providers, plural(state.providers.size, 'provider'));
  put(parts.waiting, `${grouped(state.waiting)} waiting`);
  put(parts.store, state.sample.store === 'up' ? 'store ok' : 'store lost');
  const isLive = state.link === 'live';
  parts.live.dataset.tone = isLive ? 'ok' : 'wait';
  const text = isLive ? 'live' : 'reconnecting';
  if (parts.live.dataset.text !== text) {
    parts.live.dataset.text = text;
    parts.live.replaceChildren(h('span.shape', { 'aria-hidden': 'true' }, isLive ? '●' : '◌'), text);
  }
}

const railProviders = h('div.rail-providers');
const railMore = h('a.rail-more.mute', { href: '#/providers', hidden: true });
const links = VIEWS.map(([name, title, href]) => h('a', { href, 'data-view': name, title }, svg('svg', { viewBox: '0 0 16 16', 'aria-hidden': 'true' }, svg('path', { d: ICONS[name] })), h('span', null, title)));
const railSmall = h('a.rail-small', { href: '#/providers', title: 'Providers' }, svg('svg', { viewBox: '0 0 16 16', 'aria-hidden': 'true' }, svg('path', { d: ICONS.providers })), h('span', null, 'Providers'));
$('rail').append(h('div.brand', null, h('img', { src: '/page/icon.svg', alt: '' }), h('span', null, 'Tollgate')), links[0], railSmall, railProviders, railMore, ...links.slice(1));

function drawRail() {
  const all = ranked();
  rows(railProviders, all.slice(0, RAIL_MAX), (one) => one.name, (one) => {
    const link = h('a', { href: `#/provider/${encodeURIComponent(one.name)}` }, h('span.shape', { 'aria-hidden': 'true' }), h('span.name', null, one.name), h('span.sr'), h('span.left'));
    return link;
  }, (link, one) => {
    const { shape, tone, word } = look(stateKey(one, state.sample.store));
    const [mark, , text, left] = link.children;
    mark.dataset.tone = tone;
    put(mark, shape);
    put(text, word);
    const limit = tightest(one);
    put(left, limit && limit.period >= 60 ? percent(share(limit)) : '');
    if (current === `provider/${one.name}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  });
  hide(railMore, all.length <= RAIL_MAX);
  put(railMore, `${all.length - RAIL_MAX} more`);
  set(railSmall, 'aria-current', current.startsWith('provider/') ? 'page' : null);
  for (const link of links) {
    if (link.dataset.view === current) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
}

let lastIcon = '';
function drawTitle() {
  const worst = state.sample && ranked().find((one) => !['normal', 'idle', 'unlimited', 'degrade'].includes(stateKey(one, state.sample.store)));
  const key = worst ? stateKey(worst, state.sample.store) : 'normal';
  const { shape, word, tone } = look(key);
  const place = current.startsWith('provider/') ? current.slice(9) : (VIEWS.find(([name]) => name === current) || ['', ''])[1];
  const title = `${worst ? `${shape} ${worst.name} ${word.toLowerCase()} · ` : ''}${place ? `${place} · ` : ''}Tollgate`;
  if (document.title !== title) document.title = title;
  if (tone !== lastIcon) {
    lastIcon = tone;
    const fill = getComputedStyle(document.documentElement).getPropertyValue(`--${tone}`).trim();
    const dot = worst ? `<circle cx="12" cy="12" r="3.5" fill="${fill}"/>` : '';
    const mark = '<rect x="2" y="2" width="2.4" height="12" rx="1" fill="#F5B83D"/><path d="M5 6.2 14 3.6v2.2L5 8.4z" fill="#F5B83D"/>';
    document.querySelector('link[rel=icon]').href = `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">${mark}${dot}</svg>`)}`;
  }
}

function theme(isToggled) {
  const stored = localStorage.getItem('theme');
  const wanted = matchMedia('(prefers-color-scheme: light)').matches ? 'light' : 'dark';
  let chosen = stored || wanted;
  if (isToggled) {
    chosen = document.documentElement.dataset.theme === 'light' ? 'dark' : 'light';
    localStorage.setItem('theme', chosen);
  }
  document.documentElement.dataset.theme = chosen;
  if (view && view.redraw) view.redraw();
}
matchMedia('(prefers-color-scheme: light)').addEventListener('change', () => theme());

// --- routes ---

let hasRouted = false;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const params = new URLSearchParams(query || '');
  const [first, second] = path.split('/').map(decodeURIComponent);
  const next = first === 'provider' && second ? `provider/${second}` : VIEWS.some(([name]) => name === first) ? first : 'overview';
  const isList = first === 'providers';
  if (isSignedOut) return;
  const isSame = next === current && view;
  closeSheet();
  if (isSame && ['overview', 'events'].includes(next)) {
    context.params = params;
    draw();
    if (isList) $('providers').scrollIntoView();
    return;
  }
  if (view && view.leave) view.leave();
  current = next;
  select(null);
  Object.assign(context, { params, name: second, replaceParams: (changed) => history.replaceState(null, '', `#/${path}${String(changed) ? `?${changed}` : ''}`) });
  const module = first === 'provider' && second ? provider : VIEWS.find(([name]) => name === next)[4];
  view = module.mount(main, context);
  scrollTo(0, 0);
  draw();
  // Where a reader of the screen is now; not at the first view, which has not been asked for.
  const heading = main.querySelector('h1');
  if (heading && hasRouted) {
    heading.tabIndex = -1;
    heading.focus({ preventScroll: true });
  }
  hasRouted = true;
  if (isList) $('providers').scrollIntoView();
}
addEventListener('hashchange', route);

// --- keys ---

const GO = { o: '#/', c: '#/callers', l: '#/calls', e: '#/events', s: '#/setup' };
let prefix = 0;

addEventListener('keydown', (event) => {
  const isTyping = event.target.closest('input, select, textarea, dialog');
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    palette();
    return;
  }
  if (event.key === 'Escape') {
    if (selected !== null && !document.querySelector('.sheet')) select(null);
    if (isTyping && event.target.blur && !event.target.closest('dialog')) event.target.blur();
    else closeSheet();
    return;
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const chip = event.key === ' ' && event.target.closest('a[role=button]');
  if (chip) {
    event.preventDefault();
    chip.click();
    return;
  }
  if (localStorage.getItem('keys') === 'off' && event.key.length === 1 && event.key !== '?') return;
  const isGo = performance.now() - prefix < 1000;
  prefix = 0;
  if (isGo && (GO[event.key] || event.key === 'p')) {
    const worst = ranked()[0];
    location.hash = event.key === 'p' ? (worst ? `#/provider/${encodeURIComponent(worst.name)}` : '#/') : GO[event.key];
  } else if (event.key === 'g') prefix = performance.now();
  else if (event.key === '?') openHelp();
  else if (event.key === 't') theme(true);
  else if (event.key === '/') {
    event.preventDefault();
    const filter = $('filter');
    if (filter) filter.focus();
    else palette();
  } else if (event.key === 'j' || event.key === 'k') move(event.key === 'j' ? 1 : -1);
  else if (event.key === 'Enter' && selected !== null && (event.target === document.body || event.target.closest('h1, main'))) {
    if (event.target.closest('a, button, summary')) return;
    // The same key would press the button that the sheet focuses.
    event.preventDefault();
    openSelected();
  }
});

// The selected row is remembered by what it shows, not by its place: lists move. A view may hold its list meanwhile.
function select(row) {
  for (const one of document.querySelectorAll('.at')) if (one !== row) one.classList.remove('at');
  selected = row ? row.dataset.key || row : null;
  if (row) {
    row.classList.add('at');
    row.scrollIntoView({ block: 'nearest' });
  }
  if (view && view.onSelect) view.onSelect(row);
}

function indexOfSelected(all) {
  return selected === null ? -1 : all.findIndex((row) => row === selected || row.dataset.key === selected);
}

function move(step) {
  let all = view && view.rows ? view.rows() : [];
  if (!all.length) return;
  if (selected === null && view.onSelect) {
    view.onSelect(all[0]);
    all = view.rows();
  }
  const at = indexOfSelected(all);
  select(all[Math.max(0, Math.min(all.length - 1, at + step))]);
}

function openSelected() {
  const all = view && view.rows ? view.rows() : [];
  const row = all[indexOfSelected(all)];
  if (!row) return;
  if (row.open && row.tagName === 'TR') row.open();
  else (row.querySelector('a, button') || row).click();
}

function palette() {
  if (isSignedOut) return;
  const go = (href) => () => { location.hash = href; };
  openPalette([
    ...(view && view.commands ? view.commands() : []),
    ...ranked().map((one) => ({ title: `Provider ${one.name}`, run: go(`#/provider/${encodeURIComponent(one.name)}`) })),
    ...VIEWS.map(([, title, href, keys]) => ({ title, keys, run: go(href) })),
    { title: 'Light or dark', keys: 't', run: () => theme(true) },
    { title: 'Help: keys', keys: '?', run: openHelp },
    { title: localStorage.getItem('keys') === 'off' ? 'Single-letter keys: switch on' : 'Single-letter keys: switch off', run: () => localStorage.setItem('keys', localStorage.getItem('keys') === 'off' ? 'on' : 'off') },
    ...(sessionStorage.getItem('session') ? [{ title: 'Sign out', run: () => change('DELETE', '/v1/session').then(() => { sessionStorage.removeItem('session'); location.reload(); }).catch(() => {}) }] : []),
  ]);
}

// --- the token ---

function signIn(error) {
  if (isSignedOut) return;
  isSignedOut = true;
  stream.close();
  if (view && view.leave) view.leave();
  view = null;
  const message = h('p.tone', { 'data-tone': 'stop', role: 'alert' });
  const input = h('input', { type: 'password', autocomplete: 'current-password', 'aria-label': 'Admin token', placeholder: 'admin token' });
  const form = h('form', null, input, h('button.primary', { type: 'submit' }, 'Sign in'));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    try {
      await change('POST', '/v1/session', { token: input.value });
      sessionStorage.setItem('session', 'yes');
      isSignedOut = false;
      start();
    } catch (failure) {
      put(message, failure.status === 401 ? 'That is not the token.' : failure.message);
      input.select();
    }
  });
  put(parts.live, 'signed out');
  main.replaceChildren(h('div.signin', null, h('h1', null, 'Sign in'), h('p.mute', null, 'The token is in admin.token of tollgate.yaml, in TOLLGATE_ADMIN_TOKEN, or in the file admin.token of the state folder. The page gets a cookie for 12 hours; it does not keep the token.'), form, message));
  if (error && error.status === 403) put(message, `${error.message}; ${error.hint}`);
  input.focus();
}

async function start() {
  theme();
  try {
    context.config = await get('/v1/config');
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      signIn(error);
      return;
    }
    stream.status('lost');
  }
  get('/v1/history?span=1m').then((reply) => { onHistory(reply); schedule(); }).catch(() => {});
  route();
  stream.open();
}

theme();
start();
// For tests: what the page knows.
Object.assign(window, { tollgate: { state, now } });
