// Drives a running `forerun serve` with the official `openai` package for JavaScript: node check_clients.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Hello" }];
const options = { model, messages, max_completion_tokens: 20, temperature: 0 };

const whole = await client.chat.completions.create(options);
const text = whole.choices[0].message.content;
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...options, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(streamed, text);

const parameters = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const required = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, max_completion_tokens: 100 };
const called = await client.chat.completions.stream(required).finalChatCompletion();
const call = called.choices[0].message.tool_calls[0].function;
assert.ok(["Paris", "Rome"].includes(JSON.parse(call.arguments).city));

const response = await client.responses.create({ model, input: "Hello", max_output_tokens: 20, temperature: 0 });
assert.equal(response.output_text, text);
let deltas = "";
for await (const event of await client.responses.create({ model, input: "Hello", max_output_tokens: 20, temperature: 0, stream: true })) {
  if (event.type === "response.output_text.delta") deltas += event.delta;
}
assert.equal(deltas, text);

await assert.rejects(client.chat.completions.create({ ...options, temperature: -1 }), (error) => error.status === 400 && error.param === "temperature");
console.log("chat, stream, tools, responses and errors:", JSON.stringify(text), call.arguments);
