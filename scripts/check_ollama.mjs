// Drives a running `forerun serve` with ollama's package for JavaScript:
//
//     node check_ollama.mjs URL        (npm install ollama@0.6.4)
import { Ollama } from "ollama";

function equal(actual, expected) {
  if (actual !== expected) throw new Error(`${JSON.stringify(actual)} instead of ${JSON.stringify(expected)}`);
}

async function refused(promise, status, word) {
  const error = await promise.then(() => null, (error) => error);
  equal(error?.status_code, status);
  if (!String(error).includes(word)) throw new Error(`the error does not name ${word}: ${error}`);
}

const client = new Ollama({ host: process.argv[2] });
const { model } = (await client.list()).models[0];
const messages = [{ role: "user", content: "Hello" }];
const options = { num_predict: 20, temperature: 0 };
const request = { model, messages, options };

const answer = await client.chat(request);
const text = answer.message.content;
equal(answer.done, true);
let streamed = "";
let last;
for await (const part of await client.chat({ ...request, stream: true })) {
  streamed += part.message.content;
  last = part;
}
equal(streamed, text);
equal(last.done_reason, answer.done_reason);
equal((await client.generate({ model, prompt: "Hello", options })).response, text);

// A client that goes away in the middle of an answer.
for await (const part of await client.chat({ model, messages, stream: true, options: { num_predict: 400 } })) {
  if (part.message.content) break;
}
client.abort();

const format = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
};
const { city } = JSON.parse((await client.chat({ ...request, format, options: { num_predict: 200 } })).message.content);
if (!["Paris", "Rome"].includes(city)) throw new Error(city);

const tools = [{ type: "function", function: { name: "get_weather", description: "Returns the weather", parameters: format } }];
for (const call of (await client.chat({ ...request, tools })).message.tool_calls ?? []) {
  equal(call.function.name, "get_weather");
  equal(typeof call.function.arguments, "object");
}

if (!(await client.show({ model })).capabilities.includes("completion")) throw new Error("no completion");
equal((await client.ps()).models[0].model, model);
await refused(client.chat({ ...request, model: "nothing" }), 404, "nothing");
await refused(client.chat({ ...request, options: { typical_p: 0.5 } }), 400, "typical_p");
await refused(client.generate({ model, prompt: "a", suffix: "b" }), 400, "suffix");
await refused(client.embed({ model, input: "a" }), 400, "embeddings");
console.log(`ollama's chat, streams, tools, formats and errors: ${JSON.stringify(text)}`);
