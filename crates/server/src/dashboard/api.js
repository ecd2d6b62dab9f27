// Requests and the live stream. Changing requests carry the header that no other site can send.

export class Refused extends Error {
  constructor(status, body) {
    super(body.message || `status ${status}`);
    this.status = status;
    this.hint = body.hint || '';
  }
}

// Samples come each second: three may be late.
const QUIET_MAX = 3500;

export async function get(path, signal) {
  return read(await fetch(path, { signal, credentials: 'same-origin', headers: { accept: 'application/json' } }));
}

export async function change(method, path, body) {
  return read(await fetch(path, {
    method,
    credentials: 'same-origin',
    headers: { 'x-tollgate-admin': '1', ...(body ? { 'content-type': 'application/json' } : {}) },
    body: body ? JSON.stringify(body) : undefined,
  }));
}

async function read(response) {
  if (response.status === 204) return {};
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

// The stream, reconnecting with a growing pause. `on` gets (kind, data); `status` gets
// 'live' | 'lost' | 'refused'.
export class Stream {
  constructor(on, status) {
    this.on = on;
    this.status = status;
    this.kinds = ['sample', 'transition', 'notice', 'alert'];
    this.tries = 0;
    this.last = 0;
    // A daemon that hangs closes nothing: without a sample for this long the stream is opened anew.
    setInterval(() => {
      if (this.source && performance.now() - this.heardAt > QUIET_MAX) this.lose();
    }, 500);
  }

  want(kind, isWanted) {
    const has = this.kinds.includes(kind);
    if (has === isWanted) return;
    this.kinds = isWanted ? [...this.kinds, kind] : this.kinds.filter((one) => one !== kind);
    this.open();
  }

  open() {
    this.close();
    this.heardAt = performance.now();
    const source = new EventSource(`/v1/events?kinds=${this.kinds.join(',')}`);
    this.source = source;
    for (const kind of [...this.kinds, 'lost']) {
      source.addEventListener(kind, (event) => {
        if (this.source !== source) return;
        this.heardAt = performance.now();
        // A stream that is opened again repeats what this page has already.
        const id = Number(event.lastEventId) || 0;
        if (kind !== 'sample' && kind !== 'decision' && id) {
          if (id <= this.last) return;
          this.last = id;
        }
        this.tries = 0;
        this.status('live');
        this.on(kind, event.data);
      });
    }
    source.onerror = () => {
      if (this.source === source) this.lose();
    };
  }

  // The browser gives up after an error status, so the page tries itself.
  lose() {
    this.status('lost');
    this.close();
    this.tries += 1;
    this.timer = setTimeout(() => this.probe(), Math.min(1000 * this.tries, 5000));
  }

  // Why is there no stream? A session that ended is not a network that is gone.
  async probe() {
    try {
      const stop = new AbortController();
      const late = setTimeout(() => stop.abort(), QUIET_MAX);
      await get('/v1/history?span=1m', stop.signal).finally(() => clearTimeout(late));
      this.open();
    } catch (error) {
      if (error.status === 401 || error.status === 403) this.status('refused', error);
      else {
        this.status('lost');
        this.tries += 1;
        this.timer = setTimeout(() => this.probe(), Math.min(1000 * this.tries, 5000));
      }
    }
  }

  close() {
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
  }
}
