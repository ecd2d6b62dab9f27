// One client library of npm under one workload: `node peer.mjs TOOL SCENARIO.json`.
//
// A call is handed to the library when the scenario says; the library decides when it is sent. What
// it sent is judged by the provider's own log; what is printed here is only what became of the calls.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import http from 'node:http';

const [tool, file] = process.argv.slice(2);
const scenario = JSON.parse(readFileSync(file, 'utf8'));
const { url, limit, period_ms: period, burst, kind, calls, until_ms: until } = scenario;
const require = createRequire(process.cwd() + '/');
const load = async (name) => (await import(require.resolve(name))).default;

const tally = { sent: 0, ok: 0, refused: 0, failed: 0 };
const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
const rank = { high: 0, normal: 1, low: 2 };

function send(id, priority, submitted) {
  tally.sent += 1;
  const headers = { 'x-call-id': id, 'x-priority': priority, 'x-submitted-at': submitted };
  return new Promise((resolve) => {
    const request = http.get(url, { agent, headers }, (answer) => {
      answer.resume();
      answer.on('end', () => {
        if (answer.statusCode === 429) tally.refused += 1;
        else if (answer.statusCode < 300) tally.ok += 1;
        else tally.failed += 1;
        resolve();
      });
      answer.on('error', resolve);
    });
    request.on('error', () => { tally.failed += 1; resolve(); });
  });
}

async function limiter() {
  if (tool === 'bottleneck' || tool === 'bottleneck-redis') {
    const Bottleneck = await load('bottleneck');
    const settings = kind === 'bucket'
      ? { reservoir: burst, reservoirIncreaseAmount: limit, reservoirIncreaseInterval: period, reservoirIncreaseMaximum: burst }
      : { reservoir: limit, reservoirRefreshAmount: limit, reservoirRefreshInterval: period };
    if (tool === 'bottleneck-redis') {
      // One reservoir for all processes that have this name.
      const [port, id] = scenario.shared.split('/');
      Object.assign(settings, { id, datastore: 'ioredis', clientOptions: { host: '127.0.0.1', port: Number(port) } });
    }
    const bottleneck = new Bottleneck(settings);
    await bottleneck.ready();
    return (priority, job) => bottleneck.schedule({ priority: 1 + 4 * rank[priority] }, job);
  }
  if (tool === 'p-queue') {
    const PQueue = await load('p-queue');
    const queue = new PQueue({ interval: period, intervalCap: limit, strict: true });
    return (priority, job) => queue.add(job, { priority: -rank[priority] });
  }
  const pThrottle = await load('p-throttle');
  const throttled = pThrottle({ limit, interval: period, strict: true })((job) => job());
  return (_, job) => throttled(job);
}

const schedule = await limiter();
if (scenario.on_word) {
  console.log('ready');
  await once(process.stdin, 'data');
}
for (const [index, [at, priority]] of calls.entries()) {
  setTimeout(() => {
    const submitted = (Date.now() / 1000).toFixed(6);
    schedule(priority, () => send(`${tool}-${scenario.number}-${index}`, priority, submitted)).catch(() => {});
  }, at);
}
setTimeout(() => { console.log(JSON.stringify(tally)); process.exit(0); }, until);
