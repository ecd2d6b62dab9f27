// The SDKs of OpenAI and Anthropic for Node through the gateway: only the base URL differs.
import { createRequire } from 'node:module';

const [gateway, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { OpenAI } = require('openai');
const { Anthropic } = require('@anthropic-ai/sdk');

const hello = [{ role: 'user', content: 'hello' }];
function step(name, ok) {
  if (!ok) throw new Error(name);
  console.log('ok', name);
}

const client = new OpenAI({ baseURL: `http://${gateway}/openai/v1`, apiKey: 'unused' });
const reply = await client.chat.completions.create({ model: 'node-chat', messages: hello, max_tokens: 50 });
step('node openai chat', reply.choices[0].message.content.startsWith('word'));
let text = '';
for await (const piece of await client.chat.completions.create({ model: 'node-stream', messages: hello, max_tokens: 50, stream: true })) {
  text += piece.choices[0].delta.content ?? '';
}
step('node openai stream', text.split('word').length === 17);
const tool = { type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: {} } } };
const called = await client.chat.completions.create({ model: 'node-tools', messages: hello, max_tokens: 50, tools: [tool] });
step('node openai tools', called.choices[0].message.tool_calls[0].function.name === 'weather');
// The model is known by then, so that every attempt of the SDK reaches the provider.
await client.chat.completions.create({ model: 'node-timeout', messages: hello, max_tokens: 50 });
await client.chat.completions.create({ model: 'node-timeout', messages: hello, max_tokens: 5000, sim_output: 5000 }, { timeout: 300 })
  .then(() => step('node openai timeout', false), (error) => step('node openai timeout', error.constructor.name === 'APIConnectionTimeoutError' || error.status === 504));

const claude = new Anthropic({ baseURL: `http://${gateway}/anthropic`, apiKey: 'unused' });
const message = await claude.messages.create({ model: 'node-claude', messages: hello, max_tokens: 50 });
step('node anthropic messages', message.content[0].text.startsWith('word'));
const stream = claude.messages.stream({ model: 'node-claude-stream', messages: hello, max_tokens: 50 });
step('node anthropic stream', (await stream.finalText()).split('word').length === 17);
const weather = { name: 'weather', input_schema: { type: 'object', properties: {} } };
const used = await claude.messages.create({ model: 'node-claude-tools', messages: hello, max_tokens: 50, tools: [weather] });
step('node anthropic tools', used.stop_reason === 'tool_use' && used.content[0].name === 'weather');
await claude.messages.create({ model: 'node-claude-timeout', messages: hello, max_tokens: 50 });
await claude.messages.create({ model: 'node-claude-timeout', messages: hello, max_tokens: 5000, sim_output: 5000 }, { timeout: 300 })
  .then(() => step('node anthropic timeout', false), (error) => step('node anthropic timeout', error.constructor.name === 'APIConnectionTimeoutError' || error.status === 504));
