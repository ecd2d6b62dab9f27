// A 429 as it happens, actions and undo, names and contrast.

import http from 'node:http';
import { check, main, until } from './browser.mjs';

const { ADMIN, GATEWAY, UPSTREAM_PORT } = process.env;
let mode = 200;
let failing = 0;
const upstream = http.createServer((request, response) => {
  const isFailure = request.url.startsWith('/again') && failing > 0;
  if (isFailure) failing -= 1;
  response.writeHead(isFailure ? 503 : mode, { 'content-type': 'application/json' });
  response.end('{}');
});
upstream.listen(Number(UPSTREAM_PORT), '127.0.0.1');
let number = 0;
setInterval(() => {
  number += 1;
  const caller = ['web', 'batch'][number % 2];
  fetch(`${GATEWAY}/x@${caller}/items/${number}?secret=1`).then((reply) => reply.text()).catch(() => {});
}, 100);

const stateOf = (page) => page.evaluate(() => {
  const row = [...document.querySelectorAll('#main tbody tr')].find((one) => one.querySelector('.name') && one.querySelector('.name').textContent === 'x');
  return row ? row.querySelector('.state').textContent : '';
});

async function liveStates(page) {
  await page.goto(`${ADMIN}/`);
  await until('the first call is seen', async () => (await stateOf(page)).includes('Flowing'));
  mode = 429;
  await until('429: it stops', async () => /Cooling|Sleeping/.test(await stateOf(page)));
  await until('429s in a row: Sleeping', async () => /Sleeping/.test(await stateOf(page)));
  const title = await page.title();
  check(/x (sleeping|cooling)/.test(title), `the title says it: ${title}`);
  mode = 200;
  await until('Testing', async () => /Testing/.test(await stateOf(page)));
  await until('Flowing again', async () => /Flowing/.test(await stateOf(page)));
  const said = await page.evaluate(() => document.getElementById('announce').textContent);
  check(said.startsWith('x: '), `screen readers hear it: ${said}`);
  await page.goto(`${ADMIN}/#/events`);
  await until('the events list it', () => page.evaluate(() => document.querySelector('.events') && /Sleeping/.test(document.querySelector('.events').textContent)));
}

async function actions(page) {
  await page.goto(`${ADMIN}/#/provider/x`);
  const state = () => page.evaluate(() => document.querySelector('h1 .state').textContent);
  await until('the provider flows', async () => (await state()).includes('Flowing'));
  await page.getByRole('button', { name: 'Pause' }).click();
  await page.getByRole('menuitem', { name: 'until resumed' }).click();
  await until('Paused', async () => (await state()).includes('Paused'));
  await page.getByRole('button', { name: 'Undo' }).click();
  await until('undone: calls go again', async () => /Flowing|Testing/.test(await state()));
  await pausedForATime(page, state);
  await page.getByRole('button', { name: 'Purge' }).click();
  await page.getByRole('button', { name: 'No', exact: true }).click();
  check(await page.getByText('Delete every').count() === 0, 'a destructive action asks first');
  await until('the last calls are listed', () => page.evaluate(() => document.querySelectorAll('.log tbody tr').length > 3));
  const text = await page.evaluate(() => document.querySelector('.log').textContent);
  check(!text.includes('secret'), 'no query value is shown');
  await page.locator('.log tbody tr').first().click();
  await until('a call opens with its steps', () => page.evaluate(() => document.querySelectorAll('.sheet .steps li').length > 1));
  await page.keyboard.press('Escape');
  check(await page.locator('.sheet').count() === 0, 'Escape closes it');
}

// Undo of Resume made a pause without an end of one for 15 minutes.
async function pausedForATime(page, state) {
  await page.getByRole('button', { name: 'Pause' }).click();
  await page.keyboard.press('ArrowDown');
  const item = await page.evaluate(() => document.activeElement.textContent);
  check(item === '1 h', `arrow keys move in the menu: ${item}`);
  await page.getByRole('menuitem', { name: '15 m' }).click();
  await until('Paused for a time', async () => /Paused, 1[45] m/.test(await state()));
  await page.getByRole('button', { name: 'Resume' }).click();
  await until('resumed', async () => /Flowing|Testing/.test(await state()));
  await page.getByRole('button', { name: 'Undo' }).click();
  await until('undone: paused for the rest of its time', async () => /Paused, 1[45] m/.test(await state()));
  await until('what it is undone to has an end', () => page.evaluate(() => /until \d\d:\d\d/.test(document.querySelector('.what p').textContent)));
  await page.getByRole('button', { name: 'Resume' }).click();
  await until('resumed again', async () => /Flowing|Testing/.test(await state()));
}

// A call that got 503, then 200: the time between its attempts was drawn as green work, and 503 as a success.
async function triedAgain(page, context) {
  failing = 1;
  const reply = await fetch(`${GATEWAY}/x@again/again`);
  check(reply.status === 200, 'the second attempt succeeds');
  await page.goto(`${ADMIN}/#/calls?caller=again`);
  await until('the call is listed', () => page.evaluate(() => document.querySelectorAll('.log tbody tr').length === 1));
  await page.locator('.log tbody tr').first().click();
  const seen = await page.evaluate(() => {
    const pieces = [...document.querySelectorAll('.timeline span')].map((one) => ({ kind: one.dataset.kind, look: one.dataset.look, tone: one.dataset.tone, isHatched: getComputedStyle(one).backgroundImage.includes('repeating-linear-gradient') }));
    const steps = [...document.querySelectorAll('.steps li')].map((one) => ({ at: one.children[0].textContent, tone: one.children[1].dataset.tone, shape: one.children[1].textContent, text: one.children[2].textContent }));
    return { pieces, steps };
  });
  const at = seen.pieces.findIndex((one) => one.kind === 'retry');
  check(at > 0 && seen.pieces[at].look === 'work' && seen.pieces[at + 1].isHatched, `the time until the next attempt is hatched: ${seen.pieces.map((one) => `${one.kind} ${one.look}`)}`);
  const [failed, retried] = [/responded with 503/, /tries again in/].map((text) => seen.steps.find((one) => text.test(one.text)));
  check(failed.tone === 'stop' && failed.shape === '✗', `503 is a failure: ${failed.tone} ${failed.shape}`);
  check(retried.tone === 'wait' && retried.shape === '▒', `so is the wait one: ${retried.tone} ${retried.shape}`);
  for (const scheme of ['dark', 'light']) {
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    const bad = await page.evaluate(lowContrast);
    check(bad.length === 0, `${scheme} sheet: contrast of all text is 4.5 or more ${bad.slice(0, 4).join(' | ')}`);
    await names(page, context, 'sheet');
  }
  await page.keyboard.press('Escape');
}

// A rejection was drawn as a wait only.
async function rejected(page) {
  await fetch(`${ADMIN}/v1/providers/x/offline`, { method: 'POST', headers: { 'x-tollgate-admin': '1' } });
  await fetch(`${GATEWAY}/x@late/late`);
  await fetch(`${ADMIN}/v1/providers/x/resume`, { method: 'POST', headers: { 'x-tollgate-admin': '1' } });
  await page.goto(`${ADMIN}/#/calls?caller=late`);
  await until('the rejected call is listed', () => page.evaluate(() => document.querySelectorAll('.log tbody tr').length === 1));
  await page.locator('.log tbody tr').first().click();
  const pieces = await page.evaluate(() => [...document.querySelectorAll('.timeline span[data-kind=reject]')].map((one) => ({ tone: one.dataset.tone, isHatched: getComputedStyle(one).backgroundImage !== 'none', width: one.offsetWidth })));
  check(pieces.length === 1 && pieces[0].tone === 'stop' && !pieces[0].isHatched && pieces[0].width > 3, `a rejection is solid: ${JSON.stringify(pieces)}`);
  await page.keyboard.press('Escape');
}

// Every number of the tables leads to what it counts.
async function numbersAreLinks(page) {
  await page.goto(`${ADMIN}/#/`);
  await until('the number of calls is a link', () => page.evaluate(() => Boolean(document.querySelector('#providers tbody td.drop-2 a[href="#/calls?provider=x"]'))));
  await until('so is the last 429', () => page.evaluate(() => Boolean(document.querySelector('#providers tbody a[href="#/events?kind=cooldown&provider=x"]'))));
  const saved = await page.evaluate(() => [...document.querySelectorAll('a.figure')].some((one) => one.getAttribute('href') === '#/calls?source=saved'));
  check(saved, 'what was saved is a link to calls from the cache, shared and merged');
  await page.goto(`${ADMIN}/#/callers`);
  const link = page.locator('.callers a[href="#/calls?provider=x&caller=web&source=upstream"]');
  await link.waitFor();
  await link.click();
  await until('the calls of a caller are listed', () => page.evaluate(() => document.querySelectorAll('.log tbody tr').length > 2));
  await page.goto(`${ADMIN}/#/calls?source=saved`);
  check(await page.locator('select[aria-label="every source"]').inputValue() === 'saved', 'the filter is one of the list');
}

// A link that looks like a button reacts to Space like one.
async function spacePressesChips(page) {
  await page.goto(`${ADMIN}/#/`);
  await page.locator('.chip', { hasText: 'attention' }).focus();
  await page.keyboard.press('Space');
  await until('Space presses a chip', () => page.evaluate(() => location.hash === '#/?show=attention'));
}

// The list moves ten times a second: the selected row is one call, and Enter opens that call.
async function rowsByKey(page) {
  await page.goto(`${ADMIN}/#/calls`);
  await until('calls come', () => page.evaluate(() => document.querySelectorAll('.log tbody tr').length > 5));
  for (let step = 0; step < 3; step += 1) await page.keyboard.press('j');
  const selected = () => page.evaluate(() => [...document.querySelectorAll('.at')].map((row) => row.dataset.key));
  const [key, ...others] = await selected();
  check(key && others.length === 0, 'one row is selected');
  const seen = () => page.evaluate(() => window.tollgate.state.callsSeen);
  const before = await seen();
  await until('ten calls later', async () => await seen() > before + 10);
  const after = await selected();
  check(after.length === 1 && after[0] === key, 'it is still the same call');
  await page.keyboard.press('Enter');
  check(await page.locator('.sheet').count() === 1, 'Enter opens it, and it stays open');
  const name = await page.locator('.sheet').getAttribute('aria-label');
  check(name === `Call ${key}`, name);
  await page.keyboard.press('Escape');
  check(await page.locator('.sheet').count() === 0, 'Escape closes it');
  await page.keyboard.press('k');
  check((await selected()).length === 1, 'k selects one too');
  await page.keyboard.press('Escape');
}

// A chip that has the focus keeps it while samples come.
async function focusStays(page) {
  for (const [view, name] of [['', 'attention'], ['events', 'alerts'], ['provider/x', '1h']]) {
    await page.goto(`${ADMIN}/#/${view}`);
    const chip = page.locator('.chip', { hasText: name }).first();
    await chip.focus();
    const stamp = () => page.evaluate(() => window.tollgate.state.sample.ts);
    const before = await stamp();
    await until('two samples later', async () => await stamp() > before + 1.5);
    const active = await page.evaluate(() => document.activeElement.textContent);
    check(active.startsWith(name), `${name} still has the focus: ${active}`);
  }
  await page.goto(`${ADMIN}/#/calls`);
  await until('the title names the view', async () => (await page.title()).endsWith('Calls · Tollgate'));
  const heading = await page.evaluate(() => document.activeElement.tagName);
  check(heading === 'H1', `a new view has the focus: ${heading}`);
}

async function keys(page) {
  await page.keyboard.press('g');
  await page.keyboard.press('c');
  await until('g c opens the callers', () => page.evaluate(() => location.hash === '#/callers' && /web/.test(document.getElementById('main').textContent)));
  await page.keyboard.press('Control+k');
  await page.keyboard.type('setup');
  await page.keyboard.press('Enter');
  await until('the palette opens the setup', () => page.evaluate(() => /Settings in effect/.test(document.getElementById('main').textContent)));
  await page.keyboard.press('?');
  await until('? shows the keys', () => page.evaluate(() => document.querySelector('dialog[open]') !== null));
  await page.keyboard.press('Escape');
}

// Everything that can be used or that shows something has a name in the accessibility tree.
async function names(page, context, view) {
  const session = await context.newCDPSession(page);
  const { nodes } = await session.send('Accessibility.getFullAXTree');
  const roles = ['button', 'link', 'textbox', 'searchbox', 'combobox', 'img', 'image', 'menuitem', 'tab', 'dialog', 'navigation'];
  const nameless = nodes.filter((node) => !node.ignored && roles.includes(node.role && node.role.value) && !(node.name && node.name.value.trim()));
  await session.detach();
  check(nameless.length === 0, `${view}: everything has a name ${JSON.stringify(nameless.slice(0, 3).map((node) => [node.role.value, node.properties]))}`);
}

// The contrast of all text, from the colours as they are computed.
function lowContrast() {
  const canvas = document.createElement('canvas');
  canvas.width = 1;
  canvas.height = 1;
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
  const backgroundOf = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.unshift(rgba(getComputedStyle(one).backgroundColor));
    return layers.reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => { const part = value / 255; return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest('.sr, [hidden], noscript, .skip') || !element.checkVisibility()) continue;
    const below = backgroundOf(element);
    const ink = over(rgba(getComputedStyle(element).color), below);
    const [high, low] = [light(ink), light(below)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName}.${element.className} "${element.textContent.slice(0, 30)}" ${ratio.toFixed(2)}`);
  }
  return found;
}

const VIEWS = ['', 'provider/x', 'callers', 'calls', 'events', 'setup'];

main({
  async run({ page, context, errors }) {
    await liveStates(page);
    await actions(page);
    await rowsByKey(page);
    await focusStays(page);
    await keys(page);
    await triedAgain(page, context);
    await rejected(page);
    await numbersAreLinks(page);
    await spacePressesChips(page);
    for (const scheme of ['dark', 'light']) {
      await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
      for (const view of VIEWS) {
        await page.goto(`${ADMIN}/#/${view}`);
        await page.reload();
        await until(`${scheme} ${view || 'overview'} is drawn`, () => page.evaluate(() => document.querySelector('#main h1') && window.tollgate.state.sample !== null && document.querySelectorAll('#main tr, #main li').length > 0));
        const bad = await page.evaluate(lowContrast);
        check(bad.length === 0, `${scheme} ${view || 'overview'}: contrast of all text is 4.5 or more ${bad.slice(0, 4).join(' | ')}`);
        await names(page, context, view || 'overview');
        const isWider = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
        check(!isWider, 'nothing is wider than the window');
      }
    }
    for (const width of [390, 320]) {
      await page.setViewportSize({ width, height: 844 });
      for (const view of VIEWS) {
        await page.goto(`${ADMIN}/#/${view}`);
        await until(`${view || 'overview'} is drawn`, () => page.evaluate(() => document.querySelectorAll('#main tr, #main li').length > 0));
        const [wide, room] = await page.evaluate(() => [Math.max(document.documentElement.scrollWidth, document.body.scrollWidth), innerWidth]);
        check(wide <= room, `${width} px: ${view || 'overview'} does not scroll sideways (${wide})`);
      }
    }
    await page.goto(`${ADMIN}/#/calls`);
    await until('calls are listed', () => page.evaluate(() => document.querySelectorAll('.log tbody tr').length > 3));
    const small = await page.evaluate(() => [...document.querySelectorAll('.log tbody button')].filter((one) => one.offsetHeight < 44 || one.offsetWidth < 44).length);
    check(small === 0, `a phone: the status of a call is as tall as a finger (${small} are not)`);
    await page.goto(`${ADMIN}/#/events`);
    check(await page.locator('.events .who').first().isVisible(), 'a phone shows whose event it is');
    check(errors.length === 0, `no console error ${errors.join('\n')}`);
  },
});
