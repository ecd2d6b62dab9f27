// The page with 200 providers and 1,000 calls a second: its files from the daemon and a made-up stream, or, with GATEWAY,
// all of it from a real daemon, whose provider is the server below.

import http from 'node:http';
import { check, main, until } from './browser.mjs';

const { ADMIN, GATEWAY, UPSTREAM_PORT } = process.env;
const PROVIDERS = 200;
const CALLS = Number(process.env.CALLS || 1000);
const SECONDS = Number(process.env.SECONDS || 5);
// Of the calls that are made, the page knows at least so many.
const SEEN = 0.95;
// A task that took long once may have shared its core with somebody; one that always does is the page's own.
const ATTEMPTS = 6;
// What a view must say about language models: a learned limit, a key that is set aside, a budget.
const SAYS = {
  'provider/provider-007': [/gpt, key 2: 400 \/ 90,000 tokens per minute/, /tokens, learned \d\d:\d\d/, /Key 2 is set aside until \d\d:\d\d.*: out of quota or credit \(429\)\./],
  callers: [/team budget: 400 of 500 tokens per day used, 100 remaining, resets /],
};
const VIEWS = ['', 'provider/provider-007', 'callers', 'calls', 'events', 'setup'];
// The views that ask for each call; the others must not.
const OF_CALLS = ['provider/provider-007', 'calls'];

function learned(now) {
  return { name: 'tokens (learned)', algorithm: 'token-bucket', limit: 90000, period: 60, per: 'entity', entity: 'gpt', key: 2, unit: 'tokens', used: 400, remaining: 89600, reserve: 0, window_start: null, reset_at: null, learned: { limit: 90000, period: 60, since: now - 60 } };
}

function provider(at) {
  const now = Date.now() / 1000;
  const used = Math.round(500 + 400 * Math.sin(now + at));
  const limit = { name: '1000/1d', algorithm: 'calendar', limit: 1000, period: 86400, per: 'provider', used, remaining: 1000 - used, reserve: 50, window_start: null, reset_at: now + 9000 };
  return {
    name: `provider-${String(at).padStart(3, '0')}`, state: ['normal', 'throttle', 'sleep', 'half_open'][Math.floor(now / 3 + at) % 4], hold: null, since: now, sleep_until: now + 5, failure_count: 2, consec429: 2, err_rate_30s: 0.2, rate: 17, degraded: false,
    cooldowns: [], limits: [limit, { ...limit, name: '40/10s', limit: 40, period: 10, used: used % 40, remaining: 40 - (used % 40) }, ...(at === 7 ? [learned(now)] : [])], queue: { high: 1, normal: at, low: 3, eta: 4, starved: 0, callers: { web: { waiting: at, starved: 0, eta: 4 } }, waiting_for: {} }, saved: { hits: 1, stale: 0, shared: 0, merged: 0 }, started: true, problems: 0,
    estimated_limits: [], enabled: true, last_second: { calls: used % 9, sent: [1, 2, 3], responses: [5, 0, 0, 0], saved: 1, misses: 1, rejected: 0, waits: [3, 40] }, limited_24h: 1, last_429: now - at,
  };
}

let number = 0;
function call() {
  number += 1;
  const ts = Date.now() / 1000;
  return { id: `call-${number}`, ts, provider: `provider-${String(number % PROVIDERS).padStart(3, '0')}`, entity: null, caller: 'web', priority: 'normal', method: 'GET', path: `/items/${number}`, source: 'upstream', decision: 'allow', reason: null, limit: null, wait: 0.1, attempts: 1, status: 200, steps: [{ at: 0.1, kind: 'end', text: '200 from upstream' }] };
}

function callers() {
  const caller = (at) => ({ name: `caller-${at}`, calls: 900 + at, sent: 800 + Math.round(90 * Math.random()), rejected: at, left: 0, total_calls: 900, waiting: at, starved: 0, eta: at, wait_p50: 0.1, wait_p99: 2.5, priority: 'normal', at_least: 0.2, at_most: null, limits: [{ name: 'team budget', unit: 'tokens', limit: 500, period: 86400, used: 400, remaining: 100, reset_at: Date.now() / 1000 + 9000 }] });
  return { window: 3600, providers: Array.from({ length: PROVIDERS }, (_, at) => ({ name: provider(at).name, callers: [0, 1, 2, 3, 4].map(caller) })) };
}

function history(seconds) {
  const column = () => Array.from({ length: seconds }, () => Math.round(9 * Math.random()));
  const names = ['calls', 'sent_high', 'sent_normal', 'sent_low', 'success', 'limited', 'failed', 'other', 'saved', 'rejected', 'waiting', 'wait_p50_ms', 'wait_p99_ms'];
  return { provider: null, every: 1, until: Date.now() / 1000, states: ['normal'], state: Array(seconds).fill(0), ...Object.fromEntries(names.map((name) => [name, column()])) };
}

const config = () => ({ problems: [], notes: [], store: { kind: 'memory', state: 'up' }, gateway: '127.0.0.1:4290', nodes: 1, settings: [], providers: Array.from({ length: PROVIDERS }, (_, at) => ({ name: provider(at).name, source: 'x.yaml', learned: [], settings: Array.from({ length: 40 }, (_, key) => ({ key: `key.${key}`, value: String(key), by: key % 3 ? 'default' : 'x.yaml:3:1' })) })) });
const REPLIES = {
  '/v1/history': () => history(300),
  '/v1/config': config,
  '/v1/decisions': () => ({ decisions: Array.from({ length: 500 }, call) }),
  '/v1/cache': () => ({ stored: [] }),
  '/api/rate-limit/metrics': () => ({ success: true, metrics: { entities: {} }, alerts: [] }),
};

// Calls so far.
let made = 0;

const server = http.createServer((request, response) => {
  if (GATEWAY) {
    response.end('{}');
    return;
  }
  const url = new URL(request.url, ADMIN);
  if (REPLIES[url.pathname]) {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(REPLIES[url.pathname]()));
    return;
  }
  if (url.pathname === '/v1/callers') {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(callers()));
    return;
  }
  if (url.pathname.startsWith('/v1/providers/provider-')) {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ ...provider(7), settings: [], entities: {}, keys: [{ key: 1, set_aside_until: null, reason: null }, { key: 2, set_aside_until: Date.now() / 1000 + 300, reason: 'out of quota or credit (429)' }] }));
    return;
  }
  if (url.pathname === '/v1/events') {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const event = (kind, data) => `event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`;
    const sample = () => response.write(event('sample', { ts: Date.now() / 1000, store: 'up', waiting: 9, providers: Array.from({ length: PROVIDERS }, (_, at) => provider(at)) }));
    sample();
    const notice = (at) => event('notice', { id: Date.now() * 10 + at, ts: Date.now() / 1000, kind: 'cooldown', level: 'warning', provider: provider(at).name, text: `429 number ${Math.random()}` });
    const timers = [setInterval(sample, 1000), setInterval(() => response.write(Array.from({ length: 20 }, (_, at) => notice(at)).join('')), 1000)];
    if (url.search.includes('decision')) {
      const began = Date.now();
      let sent = 0;
      // A timer that is late sends what is due.
      timers.push(setInterval(() => {
        const due = Math.floor((Date.now() - began) * CALLS / 1000) - sent;
        response.write(Array.from({ length: due }, () => event('decision', call())).join(''));
        sent += due;
        made += due;
      }, 200));
    }
    response.on('close', () => timers.forEach(clearInterval));
    return;
  }
  http.get(`${ADMIN}${request.url}`, (reply) => {
    response.writeHead(reply.statusCode, reply.headers);
    reply.pipe(response);
  });
});
server.listen(Number(UPSTREAM_PORT), '127.0.0.1');

// Calls through a real gateway, at an even pace; counts those that have their response.
function traffic() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
  const began = Date.now();
  let sent = 0;
  return setInterval(() => {
    for (const due = (Date.now() - began) * CALLS / 1000; sent < due; sent += 1) {
      const name = `provider-${String(sent % PROVIDERS).padStart(3, '0')}`;
      http.get(`${GATEWAY}/${name}@web/items/${sent}`, { agent }, (reply) => { reply.resume(); reply.on('end', () => { made += 1; }); }).on('error', () => {});
    }
  }, 10);
}

// The time between two frames, in milliseconds.
const startFrames = () => {
  window.frameGaps = [];
  let last = performance.now();
  const frame = (now) => {
    window.frameGaps.push(now - last);
    last = now;
    window.frameTimer = requestAnimationFrame(frame);
  };
  window.frameTimer = requestAnimationFrame(frame);
};
const endFrames = () => {
  cancelAnimationFrame(window.frameTimer);
  return window.frameGaps.slice(1).sort((one, other) => one - other);
};
const part = (sorted, share) => (sorted[Math.floor((sorted.length - 1) * share)] || 0).toFixed(0);

// The main thread's tasks: how long each took by the clock, and how much of it was work. On a busy machine
// the clock counts the work of others too.
async function trace(page, context, seconds) {
  const session = await context.newCDPSession(page);
  const events = [];
  session.on('Tracing.dataCollected', ({ value }) => events.push(...value));
  await session.send('Tracing.start', { categories: '-*,toplevel,devtools.timeline,__metadata', transferMode: 'ReportEvents' });
  await page.waitForTimeout(seconds * 1000);
  const done = new Promise((resolve) => { session.once('Tracing.tracingComplete', resolve); });
  await session.send('Tracing.end');
  await done;
  await session.detach();
  const mains = new Set(events.filter((one) => one.name === 'thread_name' && one.args.name === 'CrRendererMain').map((one) => `${one.pid} ${one.tid}`));
  return events.filter((one) => /RunTask$/.test(one.name) && one.tdur !== undefined && mains.has(`${one.pid} ${one.tid}`)).map((one) => ({ clock: one.dur / 1000, work: one.tdur / 1000 }));
}

main({
  async run({ page, context, errors }) {
    const calling = GATEWAY && traffic();
    const address = GATEWAY ? ADMIN : `http://127.0.0.1:${UPSTREAM_PORT}`;
    for (const view of VIEWS) {
      const name = view || 'overview';
      await page.goto('about:blank');
      await page.goto(`${address}/#/${view}`);
      await until(`${name}: 200 providers are known`, () => page.evaluate(() => window.tollgate && window.tollgate.state.providers.size >= 200));
      // A real daemon has no such provider.
      for (const text of GATEWAY ? [] : SAYS[view] || []) {
        await until(`${name}: ${text}`, async () => text.test(await page.evaluate(() => document.body.innerText)));
      }
      let over = [];
      for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
        const before = await page.evaluate(() => window.tollgate.state.callsSeen);
        const madeBefore = made;
        await page.evaluate(startFrames);
        const tasks = await trace(page, context, SECONDS);
        const gaps = await page.evaluate(endFrames);
        const calls = await page.evaluate(() => window.tollgate.state.callsSeen) - before;
        const wanted = made - madeBefore;
        const asks = OF_CALLS.includes(view);
        const longest = (of) => Math.max(0, ...tasks.map(of));
        over = tasks.filter((task) => task.work > 50);
        check(tasks.length > SECONDS, 'the trace has tasks');
        console.log(`${name}, attempt ${attempt}: longest task ${longest((task) => task.work).toFixed(0)} ms of work (${longest((task) => task.clock).toFixed(0)} ms by the clock), ${over.length} over 50 ms in ${SECONDS} s, frames ${part(gaps, 0.5)}/${part(gaps, 0.99)}/${part(gaps, 1)} ms apart (p50/p99/most), ${asks ? `${calls} of ${wanted} calls seen` : 'asks for no calls'}`);
        const keepsUp = asks ? calls >= wanted * SEEN : calls === 0;
        if (!over.length && keepsUp) break;
        check(attempt < ATTEMPTS || keepsUp, `${name}: it knows ${calls} of ${wanted} calls`);
      }
      check(over.length === 0, `${name}: no task over 50 ms`);
    }
    if (calling) clearInterval(calling);
    check(errors.length === 0, `no console error ${errors.join('\n')}`);
  },
});
