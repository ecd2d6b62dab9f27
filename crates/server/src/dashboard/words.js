// Words and numbers as people read them. One state has one name, one shape and one colour.

const STATES = {
  normal: { word: 'Flowing', shape: '●', tone: 'ok' },
  throttle: { word: 'Slowed', shape: '◐', tone: 'wait' },
  sleep: { word: 'Sleeping', shape: '■', tone: 'stop' },
  half_open: { word: 'Testing', shape: '◌', tone: 'info' },
  cache_only: { word: 'Cache only', shape: '▤', tone: 'stale' },
  degrade: { word: 'Saving quota', shape: '▥', tone: 'stale' },
  paused: { word: 'Paused', shape: '‖', tone: 'wait' },
  offline: { word: 'Offline', shape: '⊘', tone: 'stop' },
  held_cache_only: { word: 'Cache only', shape: '▤', tone: 'stale' },
  full: { word: 'Used up', shape: '▼', tone: 'wait' },
  cooling: { word: 'Cooling down', shape: '◐', tone: 'wait' },
  lost: { word: 'Store lost', shape: '▲', tone: 'stop' },
  idle: { word: 'Not called yet', shape: '○', tone: 'mute' },
};

// The order of the rail and of the overview: worst first.
const SEVERITY = ['lost', 'offline', 'sleep', 'paused', 'cache_only', 'held_cache_only', 'degrade', 'full', 'cooling', 'throttle', 'half_open', 'normal', 'idle'];

export function stateKey(provider, store) {
  if (store === 'lost') return 'lost';
  if (provider.hold === 'paused' || provider.hold === 'offline') return provider.hold;
  if (provider.hold === 'cache_only') return 'held_cache_only';
  if (provider.state !== 'normal') return provider.state;
  if (provider.degraded) return 'degrade';
  if (provider.cooldowns && provider.cooldowns.length) return 'cooling';
  if (usedUp(provider)) return 'full';
  return provider.started ? 'normal' : 'idle';
}

// A limit of a minute or longer has nothing left for anybody.
export function usedUp(provider) {
  return provider.limits.find((limit) => limit.remaining === 0 && limit.period >= 60);
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
  if (key === 'full' && usedUp(provider).reset_at) return `Used up until ${clock(usedUp(provider).reset_at).slice(0, -3)}`;
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
  if (key === 'paused') return 'Paused by an operator: calls wait until it is resumed.';
  if (key === 'offline') return 'Taken offline by an operator: calls are rejected until it is resumed.';
  if (key === 'held_cache_only') return 'Cache only by an operator: no call is sent.';
  if (cooling) {
    const of = cooling.of === 'provider' ? '' : ` on ${cooling.of}`;
    return `${cooling.reason}${of}; calls wait until ${clock(cooling.until)}.`;
  }
  if (key === 'sleep') {
    const why = provider.consec429 ? `${provider.consec429} × 429 in a row` : `${provider.failure_count || 'several'} failures in a row`;
    return `${why}; a test call follows at ${clock(provider.sleep_until)}.`;
  }
  if (key === 'half_open') return 'A few test calls go out; the rest waits for their result.';
  if (key === 'throttle') return `${percent(provider.err_rate_30s)} of calls failed in the last 30 s; fewer are sent until that improves.`;
  if (key === 'cache_only') return 'Only cached responses are used; no call is sent.';
  if (key === 'degrade') return 'Few calls remain; only cached responses are used for the rest of the window.';
  if (key === 'full') return `${usedUp(provider).name} is used up; calls wait until ${clock(usedUp(provider).reset_at)}.`;
  if (key === 'idle') return 'No call has come through Tollgate since it started.';
  return 'Calls flow.';
}

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (value >= 1e6) return `${trim(value / 1e6)} M`;
  if (value >= 1e4) return `${trim(value / 1e3)} k`;
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
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

let today = 0;

// The last midnight here.
function midnight() {
  const now = Date.now() / 1000;
  if (now >= today + 86400 || !today) today = new Date().setHours(0, 0, 0, 0) / 1000;
  return today;
}

export function clock(epoch) {
  if (!epoch) return '–';
  const date = new Date(epoch * 1000);
  const two = (value) => String(value).padStart(2, '0');
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return epoch >= midnight() && epoch < midnight() + 86400 ? time : `${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

export function age(epoch, now) {
  return epoch ? `${span(Math.max(0, now - epoch))} ago` : '–';
}

// "1000 per day", from a period in seconds.
export function per(period) {
  const known = { 1: 'per second', 60: 'per minute', 3600: 'per hour', 86400: 'per day', 0: 'at a time' };
  return known[period] || `per ${span(period)}`;
}

export function plural(count, one, many) {
  return `${grouped(count)} ${count === 1 ? one : many || `${one}s`}`;
}
