// A daemon that hangs: it accepts and sends nothing more. Then it lives again, with other numbers of events.

import http from 'node:http';
import { check, main, until } from './browser.mjs';

const { ADMIN, UPSTREAM_PORT } = process.env;
let isHung = false;
let streams = 0;
let first = 1000;

const server = http.createServer((request, response) => {
  if (isHung) return;
  if (request.url.startsWith('/v1/events')) {
    streams += 1;
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const sample = () => { if (!isHung) response.write(`event: sample\ndata: ${JSON.stringify({ ts: Date.now() / 1000, store: 'up', waiting: 0, providers: [] })}\n\n`); };
    response.write(`event: notice\nid: ${first}\ndata: ${JSON.stringify({ id: first, ts: Date.now() / 1000, kind: 'reload', level: 'info', provider: null, text: `number ${first}` })}\n\n`);
    sample();
    const timer = setInterval(sample, 500);
    response.on('close', () => clearInterval(timer));
    return;
  }
  http.get(`${ADMIN}${request.url}`, (reply) => {
    response.writeHead(reply.statusCode, reply.headers);
    reply.pipe(response);
  });
});
server.listen(Number(UPSTREAM_PORT), '127.0.0.1');

main({
  async run({ page }) {
    const bar = () => page.evaluate(() => document.querySelector('#bar .facts').textContent);
    const events = () => page.evaluate(() => document.querySelector('.events') && document.querySelector('.events').textContent);
    await page.goto(`http://127.0.0.1:${UPSTREAM_PORT}/#/events`);
    await until('it is live', async () => (await bar()).includes('live'));
    await until('an event is listed', async () => /number 1000/.test(await events()));
    isHung = true;
    await until('the top bar says that it is not', async () => (await bar()).includes('reconnecting'));
    await until('so does the line below it', () => page.evaluate(() => !document.getElementById('stale').hidden && /old, reconnecting/.test(document.getElementById('stale').textContent)));
    const before = streams;
    first = 2000;
    isHung = false;
    await until('a new stream is opened', async () => streams > before);
    await until('it is live again', async () => (await bar()).includes('live') && page.evaluate(() => document.getElementById('stale').hidden));
    await until('events of the next daemon are listed', async () => /number 2000/.test(await events()));
    check(true, 'done');
  },
});
