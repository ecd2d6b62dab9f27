// Screenshots of the page with a busy daemon: every view, both themes, three widths, and the first start.
//
//   make screens                     all of them, in target/screens
//   make screens OUT=docs README=1   only those of the README, over the old ones
//
// It starts its own providers and daemon, in a folder that it deletes.

import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { open, until } from './browser.mjs';

// PAGE: a folder with files of the page, instead of those in the program.
const { TOLLGATE, OUT, README, PAGE } = process.env;
const THEMES = ['dark', 'light'];
const WIDTHS = [[1440, 900], [900, 900], [390, 844]];

const broken = new Set();
const upstream = http.createServer((request, response) => {
  const name = request.url.split('/')[1];
  const [status, headers] = broken.has(name) ? (name === 'api-sports' ? [429, { 'retry-after': '45' }] : [503, {}]) : [200, {}];
  setTimeout(() => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end('{"ok":true}');
  }, 15 + Math.random() * 40);
});

const FILES = {
  'tollgate.yaml': () => 'store: "memory:"\ncallers:\n  web: {priority: high, at_least: 30%}\n  backfill: {priority: low}\nproviders:\n  - tmdb.yaml\n  - omdb.yaml\n  - api-sports.yaml\n  - musicbrainz.yaml\n  - openweather.yaml\n  - github.yaml\n  - internal-recommendation-service.yaml\n',
  'tmdb.yaml': (port) => `upstream: http://127.0.0.1:${port}\npreset: none\nlimits:\n  - {limit: 40, period: 10s, reserve: 4}\n  - {limit: 20000, period: 1d, algorithm: calendar, timezone: UTC}\nconcurrency: 20\nentities: {strip: /3, ttl: {movie: 6h, search: 10m}}\ncache: {ttl: 1h}\nqueue: {max: 6000, timeout: 6h}\nalerts: {warning: 19990}\n`,
  'omdb.yaml': (port) => `upstream: http://127.0.0.1:${port}/omdb\nlimits: [{limit: 60, period: 1d, algorithm: calendar, timezone: UTC}]\nqueue: {timeout: 48h}\nalerts: {critical: 10, warning: 30}\n`,
  'api-sports.yaml': (port) => `upstream: http://127.0.0.1:${port}/api-sports\nlimits: [{limit: 100, period: 1m, algorithm: fixed-window}, 7500/1d]\nqueue: {timeout: 2h}\nretry: {retries: {high: 9, normal: 9, low: 9}}\n`,
  'musicbrainz.yaml': (port) => `upstream: http://127.0.0.1:${port}/musicbrainz\nlimits: [1/1s]\nqueue: {timeout: 2h}\n`,
  'openweather.yaml': (port) => `upstream: http://127.0.0.1:${port}/openweather\nlimits: [60/1m]\nhealth: {failure_threshold: 3, sleep_first: 90s, sleep_min: 90s}\nqueue: {timeout: 2h}\n`,
  'github.yaml': (port) => `upstream: http://127.0.0.1:${port}/github\npreset: none\nlimits: [5000/1h]\ncache: {ttl: 5m}\napi_key: not-attached\n`,
  'internal-recommendation-service.yaml': (port) => `upstream: http://127.0.0.1:${port}/internal\n`,
};

async function daemon(folder, args) {
  const child = spawn(TOLLGATE, ['serve', '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0', ...args], { cwd: folder, env: { PATH: process.env.PATH, HOME: folder, XDG_STATE_HOME: folder }, stdio: ['ignore', 'pipe', fs.openSync(path.join(folder, 'log'), 'w')] });
  let said = '';
  child.stdout.on('data', (data) => { said += data; });
  const address = (pattern) => (said.match(pattern) || [])[1];
  const gateway = await until('the gateway listens', () => address(/listens on (http:\/\/\S+)/));
  const admin = await until('the page is there', () => address(/\(admin\)\s+(http:\/\/\S+)/));
  return { child, gateway, admin };
}

const agent = new http.Agent({ keepAlive: true, maxSockets: 6000 });
function call(gateway, where, headers = {}) {
  const request = http.get(`${gateway}/${where}`, { agent, headers }, (response) => response.resume());
  request.on('error', () => {});
  return request;
}

// A morning of work in two minutes: a backfill of 1,800 calls, a scanner, people who click, and providers that fail.
async function traffic({ gateway, admin }) {
  let number = 0;
  const every = (millis, make) => setInterval(() => { number += 1; make(number); }, millis);
  for (let at = 0; at < 60; at += 1) call(gateway, `omdb@scanner/?i=tt${at}`);
  for (let at = 0; at < 1800; at += 1) call(gateway, `tmdb@backfill/3/movie/${1000 + at}?api_key=hidden`);
  const timers = [
    every(400, (at) => call(gateway, `tmdb@web/3/movie/${at % 12}`, { 'x-tollgate-priority': 'high' })),
    every(9000, (at) => { for (let one = 0; one < 18; one += 1) call(gateway, `tmdb@scanner/3/search/${at}-${one}`); }),
    every(120, (at) => call(gateway, `github@ci/repos/acme/app/commits/${at % 25}`)),
    every(700, (at) => call(gateway, `api-sports@odds/fixtures/${at}`)),
    every(650, (at) => call(gateway, `musicbrainz@tagger/ws/2/artist/${at}`)),
    every(800, (at) => call(gateway, `openweather@web/data/2.5/weather/${at}`)),
    every(1500, (at) => call(gateway, `internal-recommendation-service/similar/${at}`)),
  ];
  const source = (name, where, every) => fetch(`${admin}/v1/sources`, { method: 'POST', headers: { 'content-type': 'application/json', 'x-tollgate-admin': '1' }, body: JSON.stringify({ name, url: `${gateway}/${where}`, every }) });
  await source('fixtures-today', 'api-sports/fixtures/today', '10m');
  await source('top-rated', 'tmdb/3/movie/top', '6h');
  const pause = (seconds) => new Promise((resolve) => { setTimeout(resolve, seconds * 1000); });
  await pause(25);
  for (let at = 0; at < 15; at += 1) call(gateway, `omdb@scanner/?i=later${at}`);
  for (let at = 0; at < 6; at += 1) call(gateway, `omdb@web/?i=click${at}`, { 'x-tollgate-timeout': '2s' });
  await pause(20);
  broken.add('openweather');
  await pause(12);
  broken.add('api-sports');
  await pause(6);
  broken.delete('api-sports');
  await pause(4);
  return () => timers.forEach(clearInterval);
}

async function shots(page, admin, name, scheme, view, ready, prepare) {
  await page.emulateMedia({ colorScheme: scheme });
  for (const [width, height] of WIDTHS) {
    await page.setViewportSize({ width, height });
    await page.goto(`${admin}/#/${view}`);
    await page.reload();
    await until(`${name} ${scheme} ${width}`, () => page.evaluate(ready));
    await new Promise((resolve) => { setTimeout(resolve, 1300); });
    if (prepare) await prepare(page);
    await page.screenshot({ path: path.join(OUT, `${name}-${scheme}-${width}.png`), fullPage: !prepare });
  }
}

const drawn = () => window.tollgate.state.sample !== null && document.querySelector('#main h1') !== null;
const listed = () => document.querySelectorAll('#main tbody tr, #main li').length > 0;

async function sheet(page, filter) {
  await page.evaluate((query) => { location.hash = `#/calls?${query}`; }, filter);
  await until('the call is listed', () => page.evaluate(() => document.querySelectorAll('.log tbody tr').length > 0));
  await page.evaluate(() => document.querySelector('.log tbody tr').open());
  await new Promise((resolve) => { setTimeout(resolve, 300); });
}

async function readme(page, admin) {
  await page.setViewportSize({ width: 1440, height: 720 });
  for (const scheme of THEMES) {
    await page.emulateMedia({ colorScheme: scheme });
    const take = (file, height) => page.screenshot({ path: path.join(OUT, `${file}-${scheme}.png`), clip: { x: 0, y: 0, width: 1440, height } });
    const go = async (view) => {
      await page.goto(`${admin}/#/${view}`);
      await page.reload();
      await until(view, () => page.evaluate(listed));
      await new Promise((resolve) => { setTimeout(resolve, 1300); });
    };
    await go('');
    await take('page', 600);
    await go('provider/tmdb');
    await take('page-provider', 720);
    await go('callers');
    await take('page-callers', 720);
    await go('calls');
    await sheet(page, 'provider=tmdb&decision=queue');
    await take('page-call', 720);
    await go('calls');
    await sheet(page, 'provider=omdb&decision=reject');
    await take('page-rejected', 720);
  }
}

async function main() {
  fs.mkdirSync(OUT, { recursive: true });
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'tollgate-screens-'));
  await new Promise((resolve) => { upstream.listen(0, '127.0.0.1', resolve); });
  const { port } = upstream.address();
  for (const [name, text] of Object.entries(FILES)) fs.writeFileSync(path.join(folder, name), text(port));
  const running = [];
  const browser = await open({});
  if (PAGE) await browser.page.route('**/page/*', (route) => route.fulfill({ path: path.join(PAGE, path.basename(new URL(route.request().url()).pathname)) }));
  try {
    const busy = await daemon(folder, ['--config', 'tollgate.yaml']);
    running.push(busy.child);
    const stop = await traffic(busy);
    if (README) await readme(browser.page, busy.admin);
    else {
      for (const scheme of THEMES) {
        await shots(browser.page, busy.admin, 'overview', scheme, '', listed);
        for (const name of ['tmdb', 'omdb', 'openweather', 'api-sports']) await shots(browser.page, busy.admin, `provider-${name}`, scheme, `provider/${name}`, drawn);
        await shots(browser.page, busy.admin, 'callers', scheme, 'callers', listed);
        await shots(browser.page, busy.admin, 'calls', scheme, 'calls', listed);
        await shots(browser.page, busy.admin, 'call', scheme, 'calls', listed, (page) => sheet(page, 'provider=tmdb&decision=queue'));
        await shots(browser.page, busy.admin, 'rejected', scheme, 'calls', listed, (page) => sheet(page, 'provider=omdb&decision=reject'));
        await shots(browser.page, busy.admin, 'events', scheme, 'events', listed);
        await shots(browser.page, busy.admin, 'setup', scheme, 'setup', listed);
      }
      const empty = path.join(folder, 'empty');
      fs.mkdirSync(empty);
      fs.writeFileSync(path.join(empty, 'tmdb.yaml'), FILES['tmdb.yaml'](port));
      const first = await daemon(empty, ['--provider', 'tmdb.yaml', '--store', 'memory:']);
      running.push(first.child);
      for (const scheme of THEMES) for (const view of ['', 'provider/tmdb', 'callers', 'calls', 'events', 'setup']) await shots(browser.page, first.admin, `empty-${view.split('/')[0] || 'overview'}`, scheme, view, drawn);
    }
    stop();
  } finally {
    running.forEach((child) => child.kill());
    await browser.close();
    fs.rmSync(folder, { recursive: true, force: true });
  }
  process.exit(0);
}

main().catch((error) => {
  console.error(error.stack);
  process.exit(1);
});
