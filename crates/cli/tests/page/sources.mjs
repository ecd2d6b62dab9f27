// Sources on the page: when each runs next, how its last fetch went, and a fetch that fails while somebody looks.

import http from 'node:http';
import { check, main, until } from './browser.mjs';

const { ADMIN, UPSTREAM_PORT } = process.env;
let isBroken = false;
const upstream = http.createServer((request, response) => {
  const isBad = isBroken || request.url.startsWith('/bad');
  response.writeHead(isBad ? 500 : 200, { 'content-type': 'application/json' });
  response.end('{}');
});
upstream.listen(Number(UPSTREAM_PORT), '127.0.0.1');

async function add(source) {
  const reply = await fetch(`${ADMIN}/v1/sources`, { method: 'POST', headers: { 'x-tollgate-admin': '1' }, body: JSON.stringify(source) });
  check(reply.status === 201, `${source.name} is added: ${await reply.text()}`);
}

// The cells of a source's row: name, provider, when, next run, last result.
const rowOf = (page, name) => page.evaluate((wanted) => {
  const rows = [...document.querySelectorAll('#main tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent));
  return rows.find((cells) => cells[0] === wanted) || [];
}, name);
// So far from now that it does not run during the test.
const HOUR = String((new Date().getUTCHours() + 12) % 24).padStart(2, '0');
const TIME = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/;

main({
  async run({ page, errors }) {
    await page.goto(`${ADMIN}/#/setup`);
    await until('the settings are shown', () => page.evaluate(() => /Settings in effect/.test(document.getElementById('main').textContent)));
    check(!(await page.evaluate(() => /Sources/.test(document.getElementById('main').textContent))), 'without sources there is no list of them');
    const url = `http://127.0.0.1:${UPSTREAM_PORT}`;
    await add({ name: 'daily', url: `${url}/daily`, cron: `0 ${Number(HOUR)} * * *` });
    await add({ name: 'good', url: `${url}/good`, every: '2s' });
    await add({ name: 'bad', url: `${url}/bad`, every: '1h' });
    await until('sources that are added are seen without a reload', async () => (await rowOf(page, 'daily')).length === 5);
    const daily = await until('the next run of a cron is a time', async () => {
      const cells = await rowOf(page, 'daily');
      return TIME.test(cells[3]) && cells;
    });
    check(daily[3].endsWith(`${HOUR}:00:00 UTC`) && daily[4] === '–', `daily: ${daily.join(' | ')}`);
    const good = await until('a fetch that succeeds is seen', async () => {
      const cells = await rowOf(page, 'good');
      return /200/.test(cells[4]) && cells;
    });
    check(good[1] === 'x' && /^(queued|\d{4}-.*UTC)$/.test(good[3]) && good[2].startsWith('2'), `good: ${good.join(' | ')}`);
    const bad = await until('a fetch that fails is seen', async () => {
      const cells = await rowOf(page, 'bad');
      return /failed 500/.test(cells[4]) && cells;
    });
    check(TIME.test(bad[3]) || bad[3] === 'queued', `bad: ${bad.join(' | ')}`);
    const marked = await page.evaluate(() => [...document.querySelectorAll('#main tbody tr .state[data-tone=stop]')].map((one) => one.closest('tr').cells[0].textContent));
    check(marked.length === 1 && marked[0] === 'bad', `only the failure is marked: ${marked}`);
    isBroken = true;
    await until('a source that begins to fail is seen while the page is open', async () => /failed 500/.test((await rowOf(page, 'good'))[4]));
    isBroken = false;
    await until('and that it is well again', async () => /200/.test((await rowOf(page, 'good'))[4]));
    check(errors.length === 0, `no console error ${errors.join('\n')}`);
  },
});
