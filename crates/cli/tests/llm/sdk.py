"""The SDKs of OpenAI and Anthropic, LangChain and LlamaIndex through the gateway: only the base URL differs.

Arguments: the gateway's address. Each step uses a model of its own, so that the provider's account shows how often it was called.
"""

import asyncio
import sys

import anthropic
import openai
from langchain_openai import ChatOpenAI
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI as LlamaOpenAI

gateway = sys.argv[1]
TOOL = {"type": "function", "function": {"name": "weather", "description": "w", "parameters": {"type": "object", "properties": {}}}}
hello = [{"role": "user", "content": "hello"}]


def step(name, ok):
    assert ok, name
    print("ok", name, flush=True)


client = openai.OpenAI(base_url=f"http://{gateway}/openai/v1", api_key="unused")
reply = client.chat.completions.create(model="openai-chat", messages=hello, max_tokens=50)
step("openai chat", reply.choices[0].message.content.startswith("word") and reply.usage.total_tokens > 0)

pieces = list(client.chat.completions.create(model="openai-stream", messages=hello, max_tokens=50, stream=True))
text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
step("openai stream", text.count("word") == 16 and all(piece.choices for piece in pieces))

reply = client.chat.completions.create(model="openai-tools", messages=hello, tools=[TOOL], max_tokens=50)
call = reply.choices[0].message.tool_calls[0]
messages = [*hello, reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
reply = client.chat.completions.create(model="openai-tools", messages=messages, tools=[TOOL], max_tokens=50)
step("openai tools", call.function.name == "weather" and reply.choices[0].finish_reason == "stop")

reply = client.responses.create(model="openai-responses", input="hello", max_output_tokens=50)
step("openai responses", reply.output_text.startswith("word"))
kinds = [event.type for event in client.responses.create(model="openai-responses-stream", input="hello", max_output_tokens=50, stream=True)]
step("openai responses stream", (kinds[0], kinds[-1], len(kinds)) == ("response.created", "response.completed", 18))

# The SDK tries again by itself: two retries are three calls of the SDK, and no more at the provider. The model is known by then.
client.chat.completions.create(model="openai-timeout", messages=hello, max_tokens=50)
for model in ["openai-timeout", "openai-new-timeout"]:
    try:
        client.with_options(timeout=0.3).chat.completions.create(model=model, messages=hello, max_tokens=5000, extra_body={"sim_output": 5000})
        step(model, False)
    except openai.APITimeoutError:
        step(model, True)
    except openai.APIStatusError as late:  # Tollgate, which is told the timeout, was first
        step(model, late.status_code == 504)

claude = anthropic.Anthropic(base_url=f"http://{gateway}/anthropic", api_key="unused")
reply = claude.messages.create(model="claude-chat", messages=hello, max_tokens=50)
step("anthropic messages", reply.content[0].text.startswith("word") and reply.usage.output_tokens == 16)
with claude.messages.stream(model="claude-stream", messages=hello, max_tokens=50) as stream:
    text = "".join(stream.text_stream)
step("anthropic stream", text.count("word") == 16)
tool = {"name": "weather", "description": "w", "input_schema": {"type": "object", "properties": {}}}
reply = claude.messages.create(model="claude-tools", messages=hello, max_tokens=50, tools=[tool])
step("anthropic tools", reply.stop_reason == "tool_use" and reply.content[0].name == "weather")

claude.messages.create(model="claude-timeout", messages=hello, max_tokens=50)
for model in ["claude-timeout", "claude-new-timeout"]:
    try:
        claude.with_options(timeout=0.3).messages.create(model=model, messages=hello, max_tokens=5000, extra_body={"sim_output": 5000})
        step(model, False)
    except anthropic.APITimeoutError:
        step(model, True)
    except anthropic.APIStatusError as late:
        step(model, late.status_code == 504)


async def use_async_clients():
    client = openai.AsyncOpenAI(base_url=f"http://{gateway}/openai/v1", api_key="unused")
    reply = await client.chat.completions.create(model="openai-async", messages=hello, max_tokens=50)
    stream = await client.chat.completions.create(model="openai-async-stream", messages=hello, max_tokens=50, stream=True)
    pieces = [piece.choices[0].delta.content or "" async for piece in stream]
    step("openai async", reply.choices[0].message.content.startswith("word") and "".join(pieces).count("word") == 16)
    claude = anthropic.AsyncAnthropic(base_url=f"http://{gateway}/anthropic", api_key="unused")
    async with claude.messages.stream(model="claude-async", messages=hello, max_tokens=50) as stream:
        text = "".join([text async for text in stream.text_stream])
    step("anthropic async", text.count("word") == 16)


asyncio.run(use_async_clients())

chain = ChatOpenAI(model="langchain-chat", base_url=f"http://{gateway}/openai/v1", api_key="unused", max_tokens=50)
step("langchain", chain.invoke("hello").content.startswith("word"))
chain = ChatOpenAI(model="langchain-stream", base_url=f"http://{gateway}/openai/v1", api_key="unused", max_tokens=50)
step("langchain stream", "".join(piece.text for piece in chain.stream("hello")).count("word") == 16)
tools = ChatOpenAI(model="langchain-tools", base_url=f"http://{gateway}/openai/v1", api_key="unused", max_tokens=50).bind_tools([TOOL])
step("langchain tools", tools.invoke("hello").tool_calls[0]["name"] == "weather")

# LlamaIndex knows the sizes of OpenAI's models only.
llama = LlamaOpenAI(model="gpt-4o-mini", api_base=f"http://{gateway}/openai/v1", api_key="unused", max_tokens=50)
step("llamaindex", llama.complete("hello").text.startswith("word"))
step("llamaindex stream", [piece for piece in llama.stream_complete("hello")][-1].text.count("word") == 16)
weather = FunctionTool.from_defaults(fn=lambda: "sunny", name="weather", description="w")
llama = LlamaOpenAI(model="gpt-4o", api_base=f"http://{gateway}/openai/v1", api_key="unused", max_tokens=50)
reply = llama.chat_with_tools([weather], user_msg="hello")
step("llamaindex tools", llama.get_tool_calls_from_response(reply)[0].tool_name == "weather")
