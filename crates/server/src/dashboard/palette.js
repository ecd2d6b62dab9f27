// The command palette (Ctrl K) and the help (?).

import { h } from './dom.js';

export function openPalette(commands) {
  let shown = [];
  let at = 0;
  const list = h('ul', { role: 'listbox', id: 'palette-list', 'aria-label': 'Commands' });
  const input = h('input', { type: 'text', placeholder: 'Go to a provider or view, or run a command', role: 'combobox', 'aria-expanded': 'true', 'aria-controls': 'palette-list', 'aria-label': 'Command' });
  const dialog = h('dialog.palette', { 'aria-label': 'Command palette' }, input, list);
  function draw() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = commands.filter((one) => words.every((word) => one.title.toLowerCase().includes(word))).slice(0, 40);
    at = Math.min(at, Math.max(0, shown.length - 1));
    list.replaceChildren(...shown.map((one, index) => h('li', { role: 'option', id: `command-${index}`, 'aria-selected': String(index === at), onclick: () => run(one) }, h('span', null, one.title), one.keys ? h('kbd', null, one.keys) : null)));
    input.setAttribute('aria-activedescendant', shown.length ? `command-${at}` : '');
    const current = list.children[at];
    if (current) current.scrollIntoView({ block: 'nearest' });
  }
  function run(one) {
    dialog.close();
    one.run();
  }
  input.addEventListener('input', () => { at = 0; draw(); });
  input.addEventListener('keydown', (event) => {
    if (event.key === 'ArrowDown') at = Math.min(at + 1, shown.length - 1);
    else if (event.key === 'ArrowUp') at = Math.max(at - 1, 0);
    else if (event.key === 'Enter' && shown[at]) { event.preventDefault(); run(shown[at]); return; } else return;
    event.preventDefault();
    draw();
  });
  show(dialog);
  input.focus();
  draw();
}

const HELP = [['g o', 'Overview'], ['g p', 'Worst provider'], ['g c', 'Callers'], ['g l', 'Calls'], ['g e', 'Events'], ['g s', 'Setup'], ['/', 'Filter'], ['j k', 'Next, previous row'], ['Enter', 'Open the row'], ['Ctrl K', 'Commands'], ['t', 'Light or dark'], ['Esc', 'Close'], ['?', 'This help'], ['Ctrl K', 'switches single-letter keys off']];

export function openHelp() {
  const close = h('button', { type: 'button', onclick: () => dialog.close() }, 'Close');
  const dialog = h('dialog', { 'aria-label': 'Keys' }, h('div.help', null, h('h2', null, 'Keys'), h('table', null, h('tbody', null, ...HELP.map(([keys, text]) => h('tr', null, h('td', null, h('kbd', null, keys)), h('td', null, text))))), close));
  show(dialog);
}

function show(dialog) {
  document.querySelectorAll('dialog').forEach((one) => one.close());
  dialog.addEventListener('close', () => dialog.remove());
  dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  dialog.showModal();
}
