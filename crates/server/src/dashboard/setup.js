// 6 Setup: problems first, then every setting and who set it.

import { change, get } from './api.js';
import { copyButton, h, hide, marked, put } from './dom.js';
import { grouped, plural } from './words.js';

// Sources and guards change by themselves; a person looks less often.
const SOURCES_EVERY = 5000;

export function mount(root, context) {
  const body = h('div', null, h('p.mute', null, 'Loading…'));
  const filter = h('input', { type: 'search', id: 'filter', placeholder: 'filter settings', 'aria-label': 'Filter settings', oninput: () => narrow() });
  const changed = h('button.chip', { type: 'button', 'aria-pressed': 'false', onclick: () => { changed.setAttribute('aria-pressed', String(changed.getAttribute('aria-pressed') !== 'true')); narrow(); } }, 'only what is set');
  const result = h('span.mute', { role: 'status' });
  const reload = h('button', { type: 'button', onclick: onReload }, 'Reload files');
  const fetched = h('div', null);
  let readAt = 0;
  root.replaceChildren(h('div.row', null, h('h1.grow', null, 'Setup'), result, reload), body);

  async function load() {
    const config = await get('/v1/config').catch((error) => ({ error }));
    if (!root.isConnected) return;
    if (config.error) {
      body.replaceChildren(h('p.mute', null, config.error.message));
      return;
    }
    draw(config);
    readSources();
  }
  // Sources run while the page is open, so their part is read again.
  async function readSources() {
    readAt = performance.now();
    const [{ sources }, { guards, limiting }] = await Promise.all([get('/v1/sources').catch(() => ({ sources: [] })), get('/v1/guards').catch(() => ({ guards: [] }))]);
    if (!root.isConnected || !fetched.isConnected) return;
    const part = (title, list, table) => (list.length ? [h('h2', null, title), h('div.table', null, h('div.scroll', null, table(list)))] : []);
    fetched.replaceChildren(...part(limiting && limiting !== 'on' ? `Guards, limiting ${limiting}` : 'Guards', guards, guardTable), ...part('Sources', sources, sourceTable));
  }
  async function onReload() {
    context.note('reload');
    try {
      const done = await change('POST', '/v1/reload');
      put(result, done.changed.length ? plural(done.changed.length, 'change') : 'Nothing changed');
    } catch (error) {
      put(result, error.status === 422 ? 'Rejected: see the problems below' : `Rejected: ${error.message}`);
    }
    load();
  }
  function draw(config) {
    const problems = [...config.problems.filter((one) => one.level !== 'note'), ...config.notes.map((message) => ({ level: 'error', place: '', path: '', message, hint: '' }))];
    const store = config.store.state === 'up' ? h('span.state', { 'data-tone': 'ok' }, h('span.shape', null, '●'), `${config.store.kind}, ok`) : h('span.state', { 'data-tone': 'stop' }, h('span.shape', null, '▲'), `${config.store.kind}, lost: ${config.store.trouble}`);
    const facts = [['Gateway', config.gateway ? h('span.row', null, h('code', null, `http://${config.gateway}`), copyButton(`http://${config.gateway}`)) : '–'], ['Store', store], ['Nodes', String(config.nodes)], ['Local CA', h('span.mute', null, 'HTTPS interception is not part of this version')]];
    body.replaceChildren(
      h('h2', null, problems.length ? plural(problems.length, 'problem') : 'No problems'),
      h('div.table', null, ...(problems.length ? problems.map(problem) : [h('div.empty', null, 'Every file is valid.')])),
      h('h2', null, 'This daemon'),
      h('div.table', null, h('table.facts-table', null, h('tbody', null, ...facts.map(([name, value]) => h('tr', null, h('th', { scope: 'row' }, name), h('td', null, value)))))),
      fetched,
      h('div.section', null, h('h2.grow', null, 'Settings in effect'), filter, changed),
      h('div.table', null, section('tollgate.yaml', '', config.settings, true), ...config.providers.map((one) => section(one.name, one.source, one.settings, config.providers.length === 1))));
    narrow();
  }
  function narrow() {
    const text = filter.value.toLowerCase();
    const only = changed.getAttribute('aria-pressed') === 'true';
    for (const details of body.querySelectorAll('details')) {
      let shown = 0;
      for (const row of details.querySelectorAll('tbody tr')) {
        const isShown = (!only || row.dataset.set !== 'default') && (!text || row.textContent.toLowerCase().includes(text));
        hide(row, !isShown);
        shown += isShown ? 1 : 0;
      }
      if (text) details.open = shown > 0;
      hide(details, Boolean(text) && shown === 0);
    }
  }
  load();
  return { update() { if (performance.now() - readAt > SOURCES_EVERY) readSources(); reload.disabled = Boolean(context.refusal()); reload.title = context.refusal() || 'read every file again'; }, rows: () => [...body.querySelectorAll('summary')] };
}

function problem(one) {
  const tone = one.level === 'error' ? 'stop' : 'wait';
  const text = `${one.place}${one.path ? ` ${one.path}` : ''}: ${one.message}`;
  return h('div.problem', null, h('span.shape', { 'data-tone': tone, 'aria-hidden': 'true' }, one.level === 'error' ? '■' : '▲'), h('div', null, h('div.mono', null, one.place, one.path ? ` ${one.path}` : ''), h('div', null, h('span.sr', null, `${one.level}: `), ...marked(one.message)), one.hint ? h('div.mute', null, ...marked(one.hint)) : null), copyButton(`${text}${one.hint ? `; ${one.hint}` : ''}`));
}

// The limits on callers of the user's own service, and what they denied since the start.
function guardTable(guards) {
  const rows = guards.map((one) => h('tr', null, h('td', null, one.name), h('td', null, one.limit), h('td.num', null, grouped(one.burst)), h('td', null, one.shadow ? 'counts only' : 'rejects'), h('td.num', null, grouped(one.denied)), h('td.num', null, grouped(one.shadow_denied))));
  return h('table.settings', null, h('thead', null, h('tr', null, ...['Guard', 'Limit', 'Burst', 'Mode', 'Denied', 'Would have denied'].map((name, at) => h(`th${[2, 4, 5].includes(at) ? '.num' : ''}`, { scope: 'col' }, name)))), h('tbody', null, ...rows));
}

// What is fetched regularly: when next, and how it went.
function sourceTable(sources) {
  const next = (one) => (one.queued ? 'queued' : one.next_run ? utc(one.next_run) : '–');
  const last = (one) => (one.last ? `${one.last.result}${one.last.status ? ` ${one.last.status}` : ''} ${utc(one.last.at)}${one.last.error ? `: ${one.last.error}` : ''}` : '–');
  const rows = sources.map((one) => h('tr', null, h('td', null, one.name), h('td', null, one.provider || 'no limits'), h('td', null, one.every || one.cron || 'once'), h('td', null, next(one)), h('td', null, one.last && one.last.result !== 'ok' ? h('span.state', { 'data-tone': 'stop' }, h('span.shape', { 'aria-hidden': 'true' }, '▲'), last(one)) : last(one))));
  return h('table.settings', null, h('thead', null, h('tr', null, ...['Source', 'Provider', 'When', 'Next run', 'Last result'].map((name) => h('th', { scope: 'col' }, name)))), h('tbody', null, ...rows));
}

const utc = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 19).replace('T', ' ')} UTC`;

function section(title, source, settings, isOpen) {
  const body = h('tbody', null, ...settings.map((one) => h('tr', { 'data-set': one.by === 'default' ? 'default' : 'set' }, h('td', null, one.key), h('td', null, one.value === null ? '••••••' : one.value), h('td', null, one.by))));
  return h('details', { open: isOpen }, h('summary', null, title, source ? h('span.mute', null, `  ${source}`) : null), h('div.scroll', null, h('table.settings', null, h('thead', null, h('tr', null, ...['Setting', 'Value', 'Set by'].map((name) => h('th', { scope: 'col' }, name)))), body)));
}
