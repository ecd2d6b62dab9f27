// The sentences of the page, without a browser: what is said about a provider is what holds its calls.

import assert from 'node:assert/strict';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const file = (name) => pathToFileURL(path.join(import.meta.dirname, '../../../server/src/dashboard', name));
const words = await import(file('words.js'));
const { needsAttention, onEvent, onSample, share, state, tightest } = await import(file('state.js'));
const { note, whatOf } = await import(file('lane.js'));
const { openEvents, quietWords } = await import(file('events.js'));

const NOW = Date.now() / 1000;
const limit = (more) => ({ name: '20/1s', algorithm: 'sliding-window', limit: 20, depth: 20, period: 1, per: 'provider', used: 0, in_flight: 0, remaining: 20, own_remaining: 20, reserve: 0, waiting: 0, reset_at: null, ...more });
const queue = (more) => ({ high: 0, normal: 0, low: 0, eta: null, starved: 0, callers: {}, waiting_for: {}, ...more });
const provider = (more) => ({ name: 'x', state: 'normal', hold: null, started: true, enabled: true, degraded: false, cooldowns: [], estimated_limits: [], limits: [limit()], queue: queue(), consec429: 0, failure_count: 0, sleep_until: null, last_429: null, problems: 0, ...more });
const why = (more) => words.reason(provider(more), NOW, 'up');

// The limit that holds the calls, although another one has less left.
const second = limit({ used: 19, remaining: 1, waiting: 40 });
const day = limit({ name: '1000/1d', algorithm: 'calendar', limit: 1000, period: 86400, used: 995, remaining: 5 });
assert.equal(why({ limits: [day, second], queue: queue({ normal: 40, waiting_for: { limit: 40 } }) }), '20 per second is fully used.');
// A limit with room holds nobody: the share of a caller does, or somebody more urgent.
const roomy = limit({ name: '20000/1d', limit: 20000, period: 86400, used: 107, remaining: 19893, waiting: 1788 });
assert.equal(why({ limits: [roomy], queue: queue({ low: 1788, waiting_for: { limit: 1788 } }) }), 'Urgent calls came, so calls of low priority are spread evenly over the 20,000 per day.');
assert.match(why({ limits: [roomy], queue: queue({ low: 1788, normal: 1, waiting_for: { limit: 1789 } }) }), /^Calls of higher priority, or the share of their caller/);
// The pace learned from 429s only if calls wait for it.
const estimated = [{ of: 'odds', rate: 3.4 }];
assert.match(why({ estimated_limits: estimated, queue: queue({ low: 9, waiting_for: { estimated_limit: 8, limit: 1 } }) }), /^About 3\.4 calls per second on odds, learned from 429s\.$/);
assert.equal(why({ estimated_limits: estimated, limits: [second], queue: queue({ low: 9, waiting_for: { limit: 9 } }) }), '20 per second is fully used.');
for (const [cause, text] of [['retry', /next try/], ['store', /No limit holds/], ['concurrency', /at a time/], ['off_peak', /off-peak/], ['limit', /caller or an endpoint/]]) {
  assert.match(why({ queue: queue({ normal: 3, waiting_for: { [cause]: 3 } }) }), text);
}
assert.equal(why({}), 'Calls flow.');

// A full sliding minute frees its slots one by one: it is not used up. A fixed minute and a day are.
const isUsedUp = (more) => Boolean(words.usedUp(provider({ limits: [limit({ remaining: 0, used: 20, ...more })] })));
assert.equal(isUsedUp({ period: 60 }), false);
assert.equal(isUsedUp({ period: 60, algorithm: 'fixed-window' }), true);
assert.equal(isUsedUp({ period: 3600 }), true);
assert.equal(isUsedUp({ period: 1, algorithm: 'fixed-window' }), false);

// When a 429 came, what it asked for, and how long it still holds.
const cooling = why({ last_429: NOW - 3, cooldowns: [{ of: 'odds', until: NOW + 42, reason: '429, Retry-After 1 min' }] });
assert.match(cooling, /^429, Retry-After 1 m, on odds, .+; calls wait 42 s more, until /);

// No word "urgent": it is no priority.
const starved = provider({ queue: queue({ low: 5, starved: 5, waiting_for: { limit: 5 } }) });
assert.match(words.queueWords(starved, NOW), /none is sent while calls of higher priority take everything/);
assert.match(words.etaOf({ waiting: 2, eta: null, starved: 2 }), /not now/);

// The rail and the table show the limit that calls wait for; without one, the long one with the least left.
const sampled = (limits) => {
  const one = provider({ limits, last_second: { calls: 0, sent: [0, 0, 0], responses: [0, 2, 0, 0], saved: 0, misses: 0, rejected: 0, waits: [0, 0] }, limited_24h: 0, queue: queue({ normal: 7, callers: { web: { waiting: 7 } } }) });
  onSample({ ts: NOW, store: 'up', waiting: 99, providers: [one] });
  return tightest(one);
};
assert.equal(sampled([day, second]).name, '20/1s');
assert.equal(sampled([day, limit({ used: 20, remaining: 0 })]).name, '1000/1d');
assert.equal(state.waiting, 7, 'one number on one page: the sum of the rows');
assert.equal(state.total.limited.at(-1), 2);
// Right after a restart nobody knows about the last 24 h: the history is in memory.
assert.equal(words.lastDay(NOW - 90_000, NOW), 'in 24 h');
assert.equal(words.lastDay(NOW - 60, NOW), `since the start at ${words.clock(NOW - 60)}`);
assert.equal(words.lastDay(undefined, NOW), 'in 24 h');
assert.equal(words.lastDay(NOW - 90_000, NOW, true), '24 h');
assert.match(words.lastDay(NOW - 60, NOW, true), /^since \S+$/);

// A bucket has its burst, not its limit: an idle one was "20 % left", and the provider was said to say so.
const bucket = (more) => limit({ name: '100/1m burst 20', algorithm: 'token-bucket', limit: 100, depth: 20, period: 60, remaining: 20, own_remaining: 20, ...more });
assert.equal(share(bucket()), 1);
assert.deepEqual(note(provider(), bucket(), NOW, true), ['', '']);
assert.equal(whatOf(bucket({ used: 5 }), true), '5 / 20 burst, 100 per minute');
assert.equal(whatOf(limit({ limit: 2, depth: 40, used: 38 }), true), '38 / 40 burst, 2 per second');
assert.equal(whatOf(limit({ used: 3 }), true), '3 / 20 per second');
// Only a count that is lower than ours is the provider's.
assert.deepEqual(note(provider(), limit({ used: 2, remaining: 11, own_remaining: 18 }), NOW, true), ['provider says 11 left', 'info']);
assert.equal(words.hasRoom(bucket({ remaining: 5 })), true);

// Steps of a call are milliseconds apart: "+2.9 s" stood there four times.
assert.deepEqual([0, 0.012, 2.9031, 61.5].map(words.offset), ['0 s', '12 ms', '2.903 s', '61.500 s']);

// "Quiet for 3 d 4 h" was the daemon's uptime, and one old event hid it.
assert.match(quietWords([], NOW - 273_600), /^Quiet for 3 d 4 h since the start$/);
assert.match(quietWords([{ ts: NOW - 7_200 }], NOW - 273_600), /^Quiet for 2 h since the last event$/);
assert.equal(quietWords([{ ts: NOW - 20 }], NOW - 273_600), '');
assert.match(quietWords([], undefined), /since this page was opened$/);

// An alert that fires is open and needs attention, also after a restart, and after more events than are remembered.
const alert = { ts: null, level: 'error', provider: 'x', entity: null, alert: 'x remaining', text: 'Critical: x has 3 requests remaining' };
const quiet = provider({ last_second: { calls: 0, sent: [0, 0, 0], responses: [0, 0, 0, 0], saved: 0, misses: 0, rejected: 0, waits: [0, 0] }, limited_24h: 0 });
onSample({ ts: NOW, store: 'up', waiting: 0, alerts: [], providers: [quiet] });
assert.equal(needsAttention(quiet), false);
onSample({ ts: NOW, store: 'up', waiting: 0, alerts: [alert], providers: [quiet] });
assert.equal(needsAttention(quiet), true);
assert.deepEqual(openEvents(state.events).map((event) => [event.kind, event.status, event.text]), [['alert', 'firing', alert.text]]);
const fired = { id: 7, ts: NOW, kind: 'alert', status: 'firing', ...alert };
onEvent(fired);
assert.deepEqual(openEvents(state.events), [fired], 'its event, once it is listed');

// For which time callers are counted.
assert.equal(words.windowWords({ window: 3_600, window_of: null }, NOW), `in the last 1 h, since ${words.clock(NOW - 3_600, true)}`);
assert.equal(words.windowWords({ window: 18_000, window_of: '1000/1d' }, NOW), `in the window of 1000/1d, since ${words.clock(NOW - 18_000, true)}`);

console.log('ok');
