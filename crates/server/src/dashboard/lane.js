// The lane of a limit: used | in flight | free | reserve, with its two numbers.

import { h, put, hide } from './dom.js';
import { clock, depth, grouped, per, short, span } from './words.js';
import { pace, share } from './state.js';

export function lane(isCompact) {
  const used = h('span.lane-used');
  const flight = h('span.lane-used.lane-flight');
  const reserve = h('span.lane-reserve');
  const track = h('span.lane-track', { role: 'img' }, used, flight, reserve);
  const left = h('span.lane-left');
  const right = h('span.lane-right.mute');
  const note = h('div.lane-note', { hidden: true });
  const element = isCompact
    ? h('div.lane.lane-compact', null, track, left)
    : h('div.lane', null, h('div.lane-head', null, left, right), track, note);
  return { element, used, flight, reserve, track, left, right, note };
}

export function drawLane(parts, provider, limit, now, isCompact) {
  const left = share(limit);
  const known = limit.used !== null && limit.used !== undefined;
  const all = depth(limit);
  const part = known && all ? Math.min(1, limit.used / all) : 0;
  // Calls under way are hatched: all of a limit on calls at a time.
  const under = limit.algorithm === 'concurrency' ? part : Math.min(part, (limit.in_flight || 0) / (all || 1));
  parts.used.style.transform = `scaleX(${part - under})`;
  parts.flight.style.transform = `translateX(${((part - under) * 100).toFixed(2)}%) scaleX(${under})`;
  // A limit per second that is full is in good use, and one that frees its slots one by one; one of a day is gone.
  const isShort = limit.period < (['fixed-window', 'calendar'].includes(limit.algorithm) ? 60 : 3600);
  parts.track.dataset.tone = left === null ? 'none' : isShort || left >= 0.15 ? 'ok' : left <= 0 ? 'stop' : 'wait';
  parts.reserve.style.width = `${all ? Math.min(100, (limit.reserve / all) * 100) : 0}%`;
  hide(parts.reserve, !limit.reserve);
  const what = whatOf(limit, known);
  const of = limit.entity || limit.key ? `${[limit.entity, limit.key && `key ${limit.key}`].filter(Boolean).join(', ')}: ` : '';
  // A limit per entity has no count of its own: its lanes are those of the entities.
  const tail = !known && limit.per !== 'provider' ? ` for each ${limit.per}` : '';
  parts.track.classList.toggle('lane-template', !known);
  put(parts.left, of + what + tail);
  if (parts.left.title !== of + what + tail) parts.left.title = of + what + tail;
  const reset = limit.reset_at && limit.reset_at > now + 1 && limit.used && limit.period >= 10 ? `resets in ${span(limit.reset_at - now)}` : '';
  const label = `${of}${what}${reset ? `, ${reset}` : ''}${limit.in_flight ? `, ${limit.in_flight} under way` : ''}${limit.reserve ? `, ${limit.reserve} reserved for high priority` : ''}`;
  if (parts.track.getAttribute('aria-label') !== label) parts.track.setAttribute('aria-label', label);
  if (isCompact) return;
  put(parts.right, [limit.learned ? `${limit.name.replace(' (learned)', '')}, learned ${clock(limit.learned.since)}` : '', reset, limit.reserve ? `reserve ${grouped(limit.reserve)}` : ''].filter(Boolean).join(' · '));
  const [text, tone] = note(provider, limit, now, known);
  hide(parts.note, !text);
  put(parts.note, text);
  parts.note.dataset.tone = tone;
}

// "612 / 1,000 per day"; a bucket has a burst too: "38 / 40 burst, 2 per second".
export function whatOf(limit, known) {
  const unit = limit.unit && limit.unit !== 'calls' ? `${limit.unit.replace('_', ' ')} ` : '';
  const burst = depth(limit) === limit.limit ? '' : `${grouped(depth(limit))} burst, `;
  return `${known ? `${grouped(limit.used)} / ` : ''}${burst}${grouped(limit.limit)} ${unit}${per(limit.period)}`;
}

export function note(provider, limit, now, known) {
  if (!known || limit.remaining === null) return ['', ''];
  // Less than by our own count: the provider reports it.
  if (limit.own_remaining - limit.remaining > Math.max(1, depth(limit) * 0.01)) {
    return [`provider says ${grouped(limit.remaining)} left`, 'info'];
  }
  // The pace is that of the provider; a limit that refills all the time is not empty because of it.
  const speed = limit.entity ? 0 : pace(provider.name);
  if (speed > 0 && limit.period >= 60 && limit.remaining > 0 && limit.reset_at && ['fixed-window', 'calendar'].includes(limit.algorithm)) {
    const empty = limit.remaining / speed;
    if (empty < limit.reset_at - now) return [`empty at ${clock(now + empty)} at this pace`, 'wait'];
  }
  return ['', ''];
}

// The pace that was learned from 429s, as a lane without a count.
export function estimatedLane() {
  const text = h('span.lane-left');
  const element = h('div.lane', null, h('div.lane-head', null, text), h('span.lane-track.lane-template', { 'aria-hidden': 'true' }), h('div.lane-note', { 'data-tone': 'info' }, 'learned from 429s; add limits to the file if you know them'));
  element.draw = (one) => put(text, one.rate === null ? `${of(one)}calls go as the provider accepts them` : `${of(one)}about ${short(one.rate)} per second`);
  return element;
}

function of(one) {
  return one.of === 'provider' ? '' : `${one.of}: `;
}
