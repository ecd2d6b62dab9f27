// A browser with an empty profile, and what every script needs of it.

import { createRequire } from 'node:module';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

const require = createRequire(import.meta.url);
const { chromium } = require(process.env.PLAYWRIGHT);
const FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const PATIENCE = 100_000;

export async function open(options) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'tollgate-page-'));
  const context = await chromium.launchPersistentContext(folder, { executablePath: process.env.CHROMIUM, headless: true, args: FLAGS, viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = context.pages()[0] || await context.newPage();
  const errors = [];
  page.on('console', (message) => { if (message.type() === 'error') errors.push(`${message.text()} ${message.location().url}`); });
  page.on('pageerror', (error) => errors.push(String(error.stack)));
  return {
    page,
    context,
    errors,
    async close() {
      await context.close();
      fs.rmSync(folder, { recursive: true, force: true });
    },
  };
}

export function check(isSo, what) {
  if (!isSo) throw new Error(`not so: ${what}`);
  console.log(`ok: ${what}`);
}

// Waits until `probe` returns something, for far longer than a busy machine needs.
export async function until(what, probe) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await probe();
    if (found) {
      console.log(`ok: ${what}`);
      return found;
    }
    if (Date.now() > end) throw new Error(`did not happen: ${what}`);
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
}

export async function main(script) {
  let browser = null;
  try {
    browser = await open(script.options);
    await script.run(browser);
    await browser.close();
    process.exit(0);
  } catch (error) {
    console.error(error.stack);
    if (browser) {
      console.error('console:', browser.errors);
      await browser.close().catch(() => {});
    }
    process.exit(1);
  }
}
