// The public suite http-cache-tests against the gateway (`cache: {mode: rfc9111}`) and, in the same
// run, nginx, Squid and Varnish, as the suite's own set-up configures them.
//
// Promises: prints one table, and with `--out FILE` writes it between the marks of that file. What
// is missing is installed (the suite from npm, the others from apt); what cannot be had is named and
// left out. Every process it starts is ended by its own id.
//
// Never: changes a test. A test that is only for browsers is not run.
//
//   node benches/cache-tests/run.mjs --tollgate target/release/tollgate [--only squid,nginx] [--out docs/benchmarks.md]

import { execFileSync, spawn } from 'node:child_process'
import fs from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const SUITE = 'http-cache-tests@0.4.5'
// The suite's origin has this port written into its set-ups; nothing else may have it.
const ORIGIN = 8000
const started = []

function option (name, otherwise) {
  const at = process.argv.indexOf(name)
  return at < 0 ? otherwise : process.argv[at + 1]
}

function has (program) {
  try {
    execFileSync('sh', ['-c', `command -v ${program}`], { stdio: 'ignore' })
    return true
  } catch { return false }
}

// From apt, if that works without questions.
function install (program, pack) {
  if (has(program)) return true
  const sudo = process.getuid() === 0 ? '' : 'sudo -n '
  try {
    execFileSync('sh', ['-c', `${sudo}apt-get install -y -qq --no-install-recommends ${pack}`], { stdio: 'ignore' })
  } catch { /* told by the caller */ }
  return has(program)
}

function suite (folder) {
  const at = path.join(folder, 'node_modules', 'http-cache-tests')
  if (!fs.existsSync(at)) {
    fs.mkdirSync(folder, { recursive: true })
    fs.writeFileSync(path.join(folder, 'package.json'), '{"private": true}')
    execFileSync('npm', ['install', '--no-audit', '--no-fund', '--omit=dev', SUITE], { cwd: folder, stdio: 'ignore' })
  }
  return at
}

function start (command, args, options = {}) {
  const child = spawn(command, args, { stdio: 'ignore', ...options })
  child.on('error', () => {})
  started.push(child)
  return child
}

function end () {
  for (const child of started.splice(0)) child.kill('SIGTERM')
}

// Waits until somebody listens, up to ten seconds.
async function listens (port) {
  for (let turn = 0; turn < 100; turn++) {
    const is = await new Promise(resolve => {
      const socket = net.connect(port, '127.0.0.1', () => { socket.destroy(); resolve(true) })
      socket.on('error', () => resolve(false))
    })
    if (is) return true
    await new Promise(resolve => setTimeout(resolve, 100))
  }
  return false
}

function files (folder, texts) {
  fs.mkdirSync(folder, { recursive: true })
  // Some of them go on as another user.
  fs.chmodSync(folder, 0o777)
  for (const [name, text] of Object.entries(texts)) fs.writeFileSync(path.join(folder, name), text)
  return folder
}

function first (command, args) {
  try {
    const text = execFileSync('sh', ['-c', `${command} ${args} 2>&1`], { encoding: 'utf8' })
    return (text.match(/\d+\.\d+(\.\d+)?/) || ['?'])[0]
  } catch { return '?' }
}

// As the suite sets them up in its own container; only folders and ports are ours.
const PEERS = {
  tollgate: folder => {
    const program = path.resolve(option('--tollgate', 'target/release/tollgate'))
    if (!fs.existsSync(program)) return null
    files(folder, {
      'origin.yaml': `name: origin\nupstream: http://127.0.0.1:${ORIGIN}\nlisten: 127.0.0.1:8006\n` +
        'limits: [100000/1s]\nconnections: 256\ncache: {mode: rfc9111}\nhealth: off\nrewrite_links: false\n' +
        'retry: {retries: {high: 0, normal: 0, low: 0}}\ncooldown: {base: 1ms, max: 1ms}\n'
    })
    start(program, ['serve', '--provider', 'origin.yaml', '--store', 'memory:', '--listen', '127.0.0.1:8007'], { cwd: folder })
    return { port: 8006, version: first(program, '--version') }
  },
  squid: folder => {
    if (!install('squid', 'squid')) return null
    files(folder, {
      'squid.conf': `http_port 8001 accel defaultsite=localhost no-vhost\npid_filename ${folder}/squid.pid\n` +
        `cache_peer 127.0.0.1 parent ${ORIGIN} 0 no-query no-digest originserver default name=origin\n` +
        'cache_peer_access origin allow all\nhttp_access allow all\nshutdown_lifetime 1 second\n' +
        'connect_retries 3\naccess_log none\n' + `cache_log ${folder}/cache.log\n`
    })
    start('squid', ['-N', '-f', path.join(folder, 'squid.conf')])
    return { port: 8001, version: first('squid', '-v') }
  },
  nginx: folder => {
    if (!install('nginx', 'nginx-light')) return null
    files(folder, {
      'nginx.conf': `daemon off;\npid ${folder}/nginx.pid;\nerror_log /dev/null;\nevents { worker_connections 2048; }\n` +
        `http { access_log off;\nproxy_cache_path ${folder}/cache levels=1:2 keys_zone=k:8m max_size=1000m inactive=600m;\n` +
        `proxy_temp_path ${folder}/tmp;\nclient_body_temp_path ${folder}/body;\n` +
        `server { listen 8002; location / { proxy_pass http://127.0.0.1:${ORIGIN}; proxy_cache k; proxy_cache_revalidate on; } } }\n`
    })
    start('nginx', ['-p', folder, '-c', path.join(folder, 'nginx.conf')])
    return { port: 8002, version: first('nginx', '-v') }
  },
  varnish: folder => {
    if (!install('varnishd', 'varnish')) return null
    files(folder, {})
    start('varnishd', ['-F', '-a', '127.0.0.1:8005', '-b', `127.0.0.1:${ORIGIN}`, '-n', path.join(folder, 'run'), '-s', 'malloc,64m'])
    return { port: 8005, version: first('varnishd', '-V') }
  }
}

// The suite keeps its state in modules, so every run has a process of its own.
async function measure (at, port) {
  const url = name => pathToFileURL(path.join(at, name)).href
  const { runTests, getResults } = await import(url('client/runner.mjs'))
  const fetch = (await import(pathToFileURL(path.join(at, '..', 'node-fetch', 'lib', 'index.js')).href)).default
  const tests = (await import(url('tests/index.mjs'))).default
  await runTests(tests, fetch, false, `http://127.0.0.1:${port}`)
  const results = getResults()
  const counts = {}
  const failed = []
  for (const test of tests.flatMap(one => one.tests).filter(test => !test.browser_only)) {
    const kind = test.kind || 'required'
    const result = results[test.id]
    const has = (test.depends_on || []).every(other => results[other] === true)
    const word = result === true ? 'passed' : (!result || result[0] === 'Setup' || !has) ? 'other' : 'failed'
    counts[`${kind} ${word}`] = (counts[`${kind} ${word}`] || 0) + 1
    if (kind === 'required' && word === 'failed') failed.push(test.id)
  }
  return { counts, failed }
}

// The best published result is 132 passed.
const PASSED_LEAST = 132
const FAILED_MOST = 10

function verdict (passed, failed) {
  const word = passed >= PASSED_LEAST && failed <= FAILED_MOST ? 'reached' : '**missed**'
  return `Goal: at least ${PASSED_LEAST} required passed, at most ${FAILED_MOST} failed: ${word}.`
}

function table (rows) {
  const number = (row, name) => row.counts[name] || 0
  const all = kind => number(rows[0], `${kind} passed`) + number(rows[0], `${kind} failed`) + number(rows[0], `${kind} other`)
  const lines = rows.map(row => `| ${row.name} ${row.version} | ${number(row, 'required passed')} | ${number(row, 'required failed')} | ` +
    `${number(row, 'required other')} | ${number(row, 'optimal passed')} |`)
  const ours = rows.find(row => row.name === 'tollgate')
  const what = ours ? [verdict(number(ours, 'required passed'), number(ours, 'required failed')), '',
    `Failed by tollgate: ${ours.failed.map(id => `\`${id}\``).join(', ') || 'none'}.`] : []
  return [`| cache | required passed (of ${all('required')}) | failed | not applicable | optimal passed (of ${all('optimal')}) |`,
    '|---|---|---|---|---|', ...lines, '', ...what].join('\n')
}

async function main () {
  if (process.argv[2] === '--measure') {
    process.stdout.write(JSON.stringify(await measure(process.argv[3], process.argv[4])))
    process.exit(0)
  }
  const at = suite(path.resolve('target/cache-tests'))
  const work = fs.mkdtempSync(path.join(os.tmpdir(), 'cache-tests-'))
  fs.chmodSync(work, 0o777)
  const env = { ...process.env, npm_config_protocol: 'http', npm_config_port: String(ORIGIN), npm_config_pidfile: path.join(work, 'origin.pid') }
  const rows = []
  const wanted = option('--only', Object.keys(PEERS).join()).split(',')
  for (const [name, begin] of Object.entries(PEERS).filter(([name]) => wanted.includes(name))) {
    start(process.execPath, ['--no-warnings', path.join(at, 'server', 'server.mjs')], { env, cwd: at })
    const peer = begin(path.join(work, name))
    if (!peer || !(await listens(ORIGIN)) || !(await listens(peer.port))) {
      console.error(`${name}: cannot be had or does not start; left out`)
    } else {
      // Squid listens before it believes in its origin.
      await new Promise(resolve => setTimeout(resolve, 3000))
      const text = execFileSync(process.execPath, ['--no-warnings', process.argv[1], '--measure', at, String(peer.port)], { encoding: 'utf8', maxBuffer: 1 << 26 })
      rows.push({ name, version: peer.version, ...JSON.parse(text.slice(text.lastIndexOf('{"counts"'))) })
    }
    end()
    await new Promise(resolve => setTimeout(resolve, 1500))
  }
  fs.rmSync(work, { recursive: true, force: true })
  if (rows.length === 0) process.exit(1)
  const page = table(rows)
  console.log(page)
  const out = option('--out')
  if (out) {
    const marks = ['<!-- cache-tests:begin -->', '<!-- cache-tests:end -->']
    const [before, rest] = fs.readFileSync(out, 'utf8').split(marks[0])
    const after = rest.split(marks[1])[1]
    fs.writeFileSync(out, `${before}${marks[0]}\n${page}\n${marks[1]}${after}`)
  }
}

process.on('exit', end)
await main()
