// Elements without a framework: h() builds, put() replaces text only where it changed, rows() keeps a
// list of elements in step with a list of items.

export function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split('.');
  const element = document.createElement(name || 'div');
  if (classes.length) element.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes || {})) set(element, key, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function set(element, key, value) {
  if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
  else if (value === null || value === undefined || value === false) element.removeAttribute(key);
  else if (element.getAttribute(key) !== String(value)) element.setAttribute(key, value === true ? '' : value);
}

export function put(element, text) {
  const wanted = text === null || text === undefined ? '' : String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

// A number that leads to what it counts; a dash leads nowhere.
export function putLink(link, text, href) {
  put(link, text);
  set(link, 'href', text === '–' ? null : href);
}

export function hide(element, isHidden) {
  if (element.hidden !== isHidden) element.hidden = isHidden;
}

// Keeps the children of `parent` in step with `items`: an element per key, reused and reordered.
export function rows(parent, items, key, make, update) {
  const known = parent.known || (parent.known = new Map());
  const seen = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const id = key(item);
    seen.add(id);
    let element = known.get(id);
    if (!element) {
      element = make(item);
      element.dataset.key = id;
      known.set(id, element);
    }
    update(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const [id, element] of known) {
    if (!seen.has(id)) {
      element.remove();
      known.delete(id);
    }
  }
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// The `code` of a message as such.
export function marked(text) {
  return text.split('\x60').map((part, at) => (at % 2 ? h('code', null, part) : part));
}

// A sparkline: a polyline in a box that stretches.
export function spark(label) {
  const line = svg('polyline', { points: '', fill: 'none', 'vector-effect': 'non-scaling-stroke' });
  const box = svg('svg', { viewBox: '0 0 60 20', preserveAspectRatio: 'none', class: 'spark', role: 'img', 'aria-label': label }, line);
  let last = '';
  return {
    element: box,
    draw(values) {
      // A minute wide, the newest at the right, however few there are so far.
      // One point is no line.
      if (values.length < 2) return;
      const most = Math.max(1, ...values) * 1.2;
      const points = values.map((value, at) => `${(60 - ((values.length - 1 - at) * 60) / 59).toFixed(1)},${(19 - (value / most) * 18).toFixed(1)}`).join(' ');
      if (points !== last) line.setAttribute('points', points);
      last = points;
    },
  };
}

export function copyButton(text) {
  const button = h('button.quiet', { type: 'button' }, 'Copy');
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(typeof text === 'function' ? text() : text);
      put(button, 'Copied');
    } catch {
      put(button, 'Select and copy');
    }
    setTimeout(() => put(button, 'Copy'), 1500);
  });
  return button;
}
