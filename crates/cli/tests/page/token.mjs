// With a token: nothing without it, a cookie in exchange for it.

import { check, main, until } from './browser.mjs';

const { ADMIN, TOKEN } = process.env;

main({
  async run({ page, errors }) {
    await page.goto(`${ADMIN}/`);
    await until('the page asks for the token', () => page.evaluate(() => document.querySelector('.signin') !== null));
    const pause = () => page.evaluate(async () => (await fetch('/v1/providers/x/pause', { method: 'POST', headers: { 'x-tollgate-admin': '1' } })).status);
    check(await pause() === 401, 'an action without the token is refused');
    await page.getByLabel('Admin token').fill('wrong');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await until('a wrong token is refused', () => page.evaluate(() => /not the token/.test(document.body.textContent)));
    await page.getByLabel('Admin token').fill(TOKEN);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await until('the token opens the page', () => page.evaluate(() => document.querySelector('#main table') !== null));
    const seen = await page.evaluate((token) => ({ cookie: document.cookie, storage: JSON.stringify({ ...localStorage, ...sessionStorage }), text: document.documentElement.outerHTML.includes(token) }), TOKEN);
    check(seen.cookie === '' && !seen.storage.includes(TOKEN) && !seen.text, 'no script can read the session or the token');
    check(await pause() === 200, 'the session may act');
    const bare = await page.evaluate(async () => (await fetch('/v1/providers/x/resume', { method: 'POST' })).status);
    check(bare === 403, 'not without the header that no other site can send');
    const refused = errors.filter((error) => !/40[13]/.test(error));
    check(refused.length === 0, `no console error but the refusals ${refused.join('\n')}`);
  },
});
