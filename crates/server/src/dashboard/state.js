// What the page knows: the last sample, short series for sparklines, events, calls. All bounded.

import { depth, hasRoom, heldBy, severity, stateKey } from './words.js';

const SERIES = 60;
const EVENTS_MAX = 500;
export const CALLS_MAX = 1000;

export const state = {
  sample: null,
  receivedAt: 0,
  link: 'opening',
  refusal: null,
  lastCommand: null,
  providers: new Map(),
  series: new Map(),
  total: { calls: [], waiting: [], saved: [], sent: [], rejected: [], limited: [] },
  waiting: 0,
  ranked: [],
  events: [],
  calls: [],
  callsSeen: 0,
  lostCalls: 0,
  startedAt: performance.now(),
};

// The server's clock, so that countdowns are right on a machine whose clock is not.
export function now() {
  if (!state.sample) return Date.now() / 1000;
  return state.sample.ts + (performance.now() - state.receivedAt) / 1000;
}

export function onSample(sample) {
  state.sample = sample;
  state.receivedAt = performance.now();
  const sums = { calls: 0, saved: 0, sent: 0, limited: 0, rejected: 0, limitedNow: 0, waiting: 0 };
  const seen = new Set();
  for (const provider of sample.providers) {
    seen.add(provider.name);
    state.providers.set(provider.name, provider);
    const last = provider.last_second;
    const sent = last.sent[0] + last.sent[1] + last.sent[2];
    const calls = last.calls;
    let series = state.series.get(provider.name);
    if (!series) state.series.set(provider.name, (series = { calls: [], sent: [], saved: [], misses: [] }));
    push(series.calls, calls);
    push(series.sent, sent);
    push(series.saved, last.saved);
    push(series.misses, last.misses);
    sums.calls += calls;
    sums.saved += last.saved;
    sums.sent += sent;
    sums.limited += provider.limited_24h;
    sums.rejected += last.rejected;
    sums.limitedNow += last.responses[1];
    sums.waiting += waitingOf(provider);
  }
  for (const name of state.providers.keys()) {
    if (!seen.has(name)) {
      state.providers.delete(name);
      state.series.delete(name);
    }
  }
  rank(sample.store);
  push(state.total.calls, sums.calls);
  push(state.total.saved, sums.saved);
  push(state.total.sent, sums.sent);
  // The sum of what the rows show, so that one page has one number.
  state.waiting = sums.waiting;
  push(state.total.waiting, sums.waiting);
  push(state.total.limited, sums.limitedNow);
  push(state.total.rejected, sums.rejected);
  state.limited24h = sums.limited;
}

// What happened before the page was opened.
export function onHistory(history) {
  if (state.total.calls.length > 5) return;
  const fill = (list, values) => list.splice(0, 0, ...values.slice(-SERIES + list.length));
  fill(state.total.calls, history.calls);
  fill(state.total.waiting, history.waiting);
  fill(state.total.saved, history.saved);
  fill(state.total.rejected, history.rejected);
  fill(state.total.limited, history.limited);
  fill(state.total.sent, history.sent_high.map((value, at) => value + history.sent_normal[at] + history.sent_low[at]));
}

// The same for one provider.
export function onProviderHistory(name, history) {
  const series = state.series.get(name);
  if (!series || series.isFilled) return;
  series.isFilled = true;
  series.calls.splice(0, 0, ...history.calls.slice(-SERIES + series.calls.length));
}

export function onEvent(event) {
  state.events.unshift(event);
  if (state.events.length > EVENTS_MAX) state.events.length = EVENTS_MAX;
}

export function onCall(call) {
  state.callsSeen += 1;
  state.calls.unshift(call);
  if (state.calls.length > CALLS_MAX) state.calls.length = CALLS_MAX;
}

// Calls from before, which the daemon has kept.
export function onOlderCalls(calls) {
  const known = new Set(state.calls.map((call) => call.id));
  const older = calls.filter((call) => !known.has(call.id));
  if (!older.length) return;
  state.calls = [...state.calls, ...older].sort((a, b) => b.ts - a.ts).slice(0, CALLS_MAX);
  state.callsSeen = Math.max(state.callsSeen, state.calls.length);
}

function push(list, value) {
  list.push(value);
  if (list.length > SERIES) list.shift();
}

export function sum(list) {
  return list.reduce((all, one) => all + one, 0);
}

export function mean(list) {
  return list.length ? sum(list) / list.length : 0;
}

// Worst first, then the busiest, then by name.
// Once per sample: everybody asks for it.
function rank(store) {
  const order = new Map();
  for (const provider of state.providers.values()) {
    const limit = findTightest(provider);
    tight.set(provider, limit);
    // Calls that wait, by their order of magnitude: rows must not change places each second.
    const queue = -Math.ceil(Math.log10(waitingOf(provider) + 1));
    order.set(provider, [severity(stateKey(provider, store)), queue, limit ? -Math.round(10 * (1 - share(limit))) : 0]);
  }
  state.ranked = [...order.keys()].sort((a, b) => {
    const [one, other] = [order.get(a), order.get(b)];
    return one[0] - other[0] || one[1] - other[1] || one[2] - other[2] || (a.name < b.name ? -1 : 1);
  });
}

const tight = new WeakMap();

export function ranked() {
  return state.ranked;
}

// Something is not as it should be: not only the state, also an alert, and a 429 within ten minutes.
export function needsAttention(provider) {
  const key = stateKey(provider, state.sample.store);
  if (alertOf(provider)) return true;
  return !['normal', 'idle', 'unlimited'].includes(key) || provider.problems > 0 || (provider.last_429 !== null && now() - provider.last_429 < 600);
}

// The first of its alerts that fire: critical ones come first.
export function alertOf(provider) {
  return openAlerts().find((one) => one.provider === provider.name);
}

// What fires now, also if it began before the daemon's start or many events ago.
export function openAlerts() {
  return (state.sample && state.sample.alerts) || [];
}

export function share(limit) {
  if (limit.remaining === null || !depth(limit)) return null;
  return Math.min(1, Math.max(0, limit.remaining / depth(limit)));
}

// The limit that calls wait for; without one, the limit that has the smallest share left, where long periods matter
// more than seconds.
export function tightest(provider) {
  return tight.get(provider);
}

function findTightest(provider) {
  const held = heldBy(provider);
  if (held && !hasRoom(held)) return held;
  let best = null;
  for (const limit of provider.limits) {
    const left = share(limit);
    if (left === null) continue;
    // The rail shows what is gone for long; a second's limit only where there is no other.
    const weight = left + (limit.period < 60 ? 2 : 0);
    if (!best || weight < best.weight) best = { weight, limit };
  }
  return best && best.limit;
}

// Calls per second over the last minute.
export function pace(name) {
  const series = state.series.get(name);
  return series ? mean(series.sent.slice(-30)) : 0;
}

export function waitingOf(provider) {
  return provider.queue ? provider.queue.high + provider.queue.normal + provider.queue.low : 0;
}
