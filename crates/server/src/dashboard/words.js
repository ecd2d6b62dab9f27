// Words and numbers as people read them. One state has one name, one shape and one colour.

const STATES = {
  normal: { word: 'Flowing', shape: '●', tone: 'ok' },
  throttle: { word: 'Slowed', shape: '◐', tone: 'wait' },
  sleep: { word: 'Sleeping', shape: '■', tone: 'stop' },
  half_open: { word: 'Testing', shape: '◌', tone: 'info' },
  cache_only: { word: 'Cache only', shape: '▤', tone: 'stale' },
  degrade: { word: 'Saving quota', shape: '▥', tone: 'stale' },
  paused: { word: 'Paused', shape: '⏸\uFE0E', tone: 'wait' },
  offline: { word: 'Offline', shape: '⊘', tone: 'stop' },
  held_cache_only: { word: 'Cache only', shape: '▤', tone: 'stale' },
  full: { word: 'Used up', shape: '▼', tone: 'wait' },
  cooling: { word: 'Cooling down', shape: '◐', tone: 'wait' },
  lost: { word: 'Store lost', shape: '▲', tone: 'stop' },
  unlimited: { word: 'Not limited', shape: '○', tone: 'mute' },
  idle: { word: 'Not called yet', shape: '○', tone: 'mute' },
};

// The order of the rail and of the overview: worst first.
const SEVERITY = ['lost', 'offline', 'sleep', 'paused', 'cache_only', 'held_cache_only', 'degrade', 'full', 'cooling', 'throttle', 'half_open', 'normal', 'unlimited', 'idle'];

export function stateKey(provider, store) {
  if (store === 'lost') return 'lost';
  if (provider.hold === 'paused' || provider.hold === 'offline') return provider.hold;
  if (provider.hold === 'cache_only') return 'held_cache_only';
  if (provider.state !== 'normal') return provider.state;
  if (provider.degraded) return 'degrade';
  if (provider.cooldowns && provider.cooldowns.length) return 'cooling';
  if (usedUp(provider)) return 'full';
  if (!provider.started) return 'idle';
  return provider.enabled === false ? 'unlimited' : 'normal';
}

// A limit has nothing left for anybody until it starts anew. One that frees its slots one by one is only in full use,
// unless that takes an hour.
export function usedUp(provider) {
  return provider.limits.find((limit) => limit.remaining === 0 && limit.period >= (['fixed-window', 'calendar'].includes(limit.algorithm) ? 60 : 3600));
}

export function severity(key) {
  return SEVERITY.indexOf(key);
}

export function look(key) {
  return STATES[key] || STATES.normal;
}

export function stateWords(provider, now, store) {
  const key = stateKey(provider, store);
  const { word } = look(key);
  if (key === 'throttle' && provider.rate !== null) return `Slowed to ${short(provider.rate)}/s`;
  if (key === 'sleep' && provider.sleep_until) return `Sleeping ${span(Math.ceil(Math.max(0, provider.sleep_until - now)))}`;
  if (key === 'paused' && provider.sleep_until) return `Paused, ${span(Math.max(0, provider.sleep_until - now))} more`;
  if (key === 'full' && usedUp(provider).reset_at) return `Used up ${span(Math.max(1, Math.ceil(usedUp(provider).reset_at - now)))}`;
  if (key === 'cooling') return `Cooling down ${span(Math.ceil(Math.max(0, cooldownEnd(provider) - now)))}`;
  return word;
}

export function cooldownEnd(provider) {
  return Math.max(0, ...(provider.cooldowns || []).map((one) => one.until));
}

// Why a provider is in its state, as a sentence.
export function reason(provider, now, store) {
  const key = stateKey(provider, store);
  const cooling = (provider.cooldowns || [])[0];
  if (key === 'lost') return 'The store that counts permits cannot be reached; on_store_loss of each provider applies.';
  if (key === 'paused') return `Paused by an operator: calls wait until ${provider.sleep_until ? clock(provider.sleep_until) : 'it is resumed'}.`;
  if (key === 'offline') return 'Taken offline by an operator: calls are rejected until it is resumed.';
  if (key === 'held_cache_only') return `Cache only by an operator: no call is sent${provider.sleep_until ? ` until ${clock(provider.sleep_until)}` : ''}.`;
  if (cooling) {
    const of = cooling.of === 'provider' ? '' : `, on ${cooling.of}`;
    const at = provider.last_429 ? `, ${clock(provider.last_429)}` : '';
    return `${units(cooling.reason)}${of}${at}; calls wait ${span(Math.ceil(Math.max(0, cooling.until - now)))} more, until ${clock(cooling.until)}.`;
  }
  if (key === 'sleep') {
    const at = provider.last_429 ? `, the last at ${clock(provider.last_429)}` : '';
    const why = provider.consec429 ? `${provider.consec429} × 429 in a row${at}` : `${provider.failure_count || 'several'} failures in a row`;
    return `${why}; a test call follows ${provider.sleep_until ? `in ${span(Math.ceil(Math.max(0, provider.sleep_until - now)))}, at ${clock(provider.sleep_until)}` : 'soon'}.`;
  }
  if (key === 'half_open') return 'A few test calls go out; the rest waits for their result.';
  if (key === 'throttle') return `${percent(provider.err_rate_30s)} of calls failed in the last 30 s; fewer are sent until that improves.`;
  if (key === 'cache_only') return 'Only cached responses are used; no call is sent.';
  if (key === 'degrade') return degradeReason(provider);
  if (key === 'full') return `${limitName(usedUp(provider))} is used up${usedUp(provider).reset_at ? `; calls wait until ${clock(usedUp(provider).reset_at)}` : ''}.`;
  if (key === 'unlimited') return 'Its file says enabled: false: calls are counted and sent, whatever the limits are.';
  if (key === 'idle') return 'No call has come through Tollgate since it started.';
  return waits(provider) ? waitReason(provider) : 'Calls flow.';
}

const CAUSES = {
  cooldown: 'It cools down after a 429.',
  sleep: 'It sleeps after failures.',
  retry: 'Calls wait for their next try.',
  off_peak: 'Calls of low priority wait for off-peak hours.',
  store: 'No limit holds the calls; the store takes its time.',
  store_lost: 'The store that counts permits was lost a moment ago.',
};

// What most of the waiting calls wait for.
function waitReason(provider) {
  const causes = Object.entries(provider.queue.waiting_for || {}).sort((a, b) => b[1] - a[1]);
  const cause = causes.length ? causes[0][0] : 'limit';
  const estimated = (provider.estimated_limits || []).find((one) => one.rate !== null);
  if (cause === 'estimated_limit') return estimated ? `About ${short(estimated.rate)} calls per second${estimated.of === 'provider' ? '' : ` on ${estimated.of}`}, learned from 429s.` : 'Calls go as the provider accepts them, learned from 429s.';
  if (CAUSES[cause]) return CAUSES[cause];
  const held = heldBy(provider);
  if (held && !hasRoom(held)) return `${limitName(held)} is fully used.`;
  const { high, normal } = provider.queue;
  if (held && !high && !normal && held.algorithm === 'sliding-window') return `Urgent calls came, so calls of low priority are spread evenly over the ${limitName(held)}.`;
  if (held) return 'Calls of higher priority, or the share of their caller, hold them.';
  return cause === 'concurrency' ? 'All slots for calls at a time are taken.' : 'A limit of a caller or an endpoint is fully used.';
}

// The limit that most calls wait for: because it is used up, or because others go first.
export function heldBy(provider) {
  return provider.limits.reduce((most, one) => ((one.waiting || 0) > (most ? most.waiting : 0) ? one : most), null);
}

// More is left of it than comes and goes, beside what is reserved for urgent calls: it is not this limit that is short.
export function hasRoom(limit) {
  return limit.remaining !== null && limit.remaining > (limit.reserve || 0) + Math.max(1, depth(limit) * 0.1);
}

// What remains of a limit when nothing is used: the burst of a token bucket, the limit itself of the others.
export function depth(limit) {
  return limit.depth === undefined ? limit.limit : limit.depth;
}

// The daemon writes "5 min", the page "5 m".
export function units(text) {
  return text.replace(/(\d) min\b/g, '$1 m');
}

function waits(provider) {
  return provider.queue ? provider.queue.high + provider.queue.normal + provider.queue.low : 0;
}

// "20 per second", with what it counts.
export function limitName(limit) {
  return `${limit.entity ? `${limit.entity}: ` : ''}${grouped(limit.limit)} ${per(limit.period)}`;
}

function degradeReason(provider) {
  const short = provider.limits.filter((limit) => limit.remaining !== null && limit.period >= 60).sort((a, b) => a.remaining - b.remaining)[0];
  if (!short || !provider.degrade) return 'Few calls remain; only cached responses are used until more do.';
  const [below, recover] = provider.degrade;
  return `${limitName(short)}: ${grouped(short.remaining)} left, below ${grouped(below)}; only the cache responds until ${grouped(recover)} are left${short.reset_at ? ` or ${clock(short.reset_at, true)}` : ''}.`;
}

// Who waits and until when: "90 wait: scanner 30, backfill 60; done by 14:02:10".
export function queueWords(provider, now) {
  const count = waits(provider);
  if (!count) return '';
  const { callers, eta, starved } = provider.queue;
  const names = Object.entries(callers || {}).sort((a, b) => b[1].waiting - a[1].waiting);
  const only = names.length === 1 && names[0][0] !== 'default' ? ` (${names[0][0]})` : '';
  const who = only || names.length < 2 ? only : `: ${names.slice(0, 3).map(([name, one]) => `${name} ${grouped(one.waiting)}`).join(', ')}${names.length > 3 ? ', …' : ''}`;
  return `${plural(count, 'call waits', 'calls wait')}${who}${etaWords(eta, starved, count, now)}`;
}

function etaWords(eta, starved, count, now) {
  if (starved >= count) return '; none is sent while calls of higher priority take everything';
  const rest = starved ? `; ${grouped(starved)} not while calls of higher priority take everything` : '';
  return eta === null || eta === undefined ? rest : `; done by ${clock(now + eta)}${rest}`;
}

// For which time callers are counted: "in the window of 1000/1d, since 00:00".
export function windowWords(one, now) {
  const since = `since ${clock(now - one.window, true)}`;
  return one.window_of ? `in the window of ${one.window_of}, ${since}` : `in the last ${span(one.window)}, ${since}`;
}

// When the last of a caller's calls is sent.
export function etaOf(one) {
  if (!one.waiting) return '–';
  if (one.eta === null || one.eta === undefined) return one.starved ? 'not now' : 'when resumed';
  // A duration is not cut in two by the end of a line.
  return `${span(one.eta).replaceAll(' ', '\u00a0')}${one.starved ? `, ${grouped(one.starved)} not now` : ''}`;
}

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (value >= 1e6) return `${trim(value / 1e6)} M`;
  if (value >= 1e4) return `${trim(value / 1e3)} k`;
  if (value >= 100 || Number.isInteger(value)) return grouped(Math.round(value));
  return trim(value);
}

function trim(value) {
  return value.toFixed(value < 10 ? 1 : 0).replace(/\.0$/, '');
}

export function grouped(value) {
  // toLocaleString takes a thousand times longer, and is called for every number each second.
  return value === null || value === undefined ? '–' : String(value).replace(/\B(?=(\d{3})+$)/g, ',');
}

export function percent(part) {
  if (part === null || part === undefined || Number.isNaN(part)) return '–';
  const value = part * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1).replace(/\.0$/, '') : Math.round(value)} %`;
}

// A duration: 42 s, 5 m 12 s, 5 h 12 m, 3 d 4 h.
export function span(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 0.9995) return seconds < 0.0005 ? '0 s' : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1).replace(/\.0$/, '')} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']];
  const first = parts.findIndex(([unit]) => whole >= unit);
  const [unit, name] = parts[first];
  const rest = parts[first + 1] && Math.floor((whole % unit) / parts[first + 1][0]);
  return `${Math.floor(whole / unit)} ${name}${rest ? ` ${rest} ${parts[first + 1][1]}` : ''}`;
}

// When a step of a call was: steps are milliseconds apart, also after minutes.
export function offset(seconds) {
  return seconds < 0.9995 ? span(seconds) : `${seconds.toFixed(3)} s`;
}

let today = 0;

// The last midnight here.
function midnight() {
  const now = Date.now() / 1000;
  if (now >= today + 86400 || !today) today = new Date().setHours(0, 0, 0, 0) / 1000;
  return today;
}

// The time of day; tomorrow and later with the day. `isShort` leaves the seconds out.
export function clock(epoch, isShort) {
  if (!epoch) return '–';
  const date = new Date(epoch * 1000);
  const two = (value) => String(value).padStart(2, '0');
  const start = midnight();
  const isFar = epoch < start || epoch >= start + 86400;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}${isShort || isFar ? '' : `:${two(date.getSeconds())}`}`;
  if (!isFar) return time;
  return epoch >= start && epoch < start + 172800 ? `tomorrow ${time}` : `${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

export function age(epoch, now) {
  if (!epoch) return '–';
  const parts = span(Math.round(now - epoch)).split(' ');
  return now - epoch < 1 ? 'just now' : `${parts[0]} ${parts[1]} ago`;
}

// "1000 per day", from a period in seconds.
export function per(period) {
  const known = { 1: 'per second', 60: 'per minute', 3600: 'per hour', 86400: 'per day', 0: 'at a time' };
  return known[period] || `per ${span(period)}`;
}

export function plural(count, one, many) {
  return `${grouped(count)} ${count === 1 ? one : many || `${one}s`}`;
}

// Since when counts of the last 24 h exist: history is in memory, so a restart begins it anew.
export function lastDay(started, now, isShort) {
  const isYoung = started && now - started < 86400;
  if (isShort) return isYoung ? `since ${clock(started, true)}` : '24 h';
  return isYoung ? `since the start at ${clock(started)}` : 'in 24 h';
}
