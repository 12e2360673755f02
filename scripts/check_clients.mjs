// Drives a running `forerun serve` with the official `openai` and `@anthropic-ai/sdk` packages for JavaScript, in
// Node and in a browser:
//
//     node check_clients.mjs URL              (npm install openai @anthropic-ai/sdk)
//     node check_clients.mjs URL --browser    (npm install esbuild; the variable CHROMIUM names the browser)
//
// The page of the browser is of another origin than the server, which must allow it: `--cors-origin '*'`.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

function equal(actual, expected) {
  if (actual !== expected) throw new Error(`${JSON.stringify(actual)} instead of ${JSON.stringify(expected)}`);
}

async function refused(promise, status, word) {
  const error = await promise.then(() => null, (error) => error);
  equal(error?.status, status);
  if (!String(error).includes(word)) throw new Error(`the error does not name ${word}: ${error}`);
}

const messages = [{ role: "user", content: "Hello" }];
const parameters = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};

function checkCity(arguments_) {
  if (!["Paris", "Rome"].includes(arguments_.city)) throw new Error(JSON.stringify(arguments_));
}

async function checkOpenAI(url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, dangerouslyAllowBrowser: true });
  const model = (await client.models.list()).data[0].id;
  const options = { model, messages, max_completion_tokens: 20, temperature: 0 };
  const text = (await client.chat.completions.create(options)).choices[0].message.content;
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ ...options, stream: true })) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
  }
  equal(streamed, text);

  const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
  const required = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, max_completion_tokens: 100 };
  const called = await client.chat.completions.stream(required).finalChatCompletion();
  checkCity(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments));

  const response = await client.responses.create({ model, input: "Hello", max_output_tokens: 20, temperature: 0 });
  equal(response.output_text, text);
  let deltas = "";
  for await (const event of await client.responses.create({ model, input: "Hello", max_output_tokens: 20, temperature: 0, stream: true })) {
    if (event.type === "response.output_text.delta") deltas += event.delta;
  }
  equal(deltas, text);
  await refused(client.chat.completions.create({ ...options, temperature: -1 }), 400, "temperature");
  return { model, text };
}

async function checkAnthropic(url, { model, text }) {
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0, dangerouslyAllowBrowser: true });
  const options = { model, max_tokens: 20, messages, temperature: 0 };
  equal((await client.messages.create(options)).content[0].text, text);
  equal(await client.messages.stream(options).finalText(), text);
  const tools = [{ name: "get_weather", input_schema: parameters }];
  const tool_choice = { type: "any", disable_parallel_tool_use: true };
  checkCity((await client.messages.create({ ...options, max_tokens: 100, tools, tool_choice })).content[0].input);
  const output_config = { format: { type: "json_schema", schema: parameters } };
  checkCity((await client.messages.parse({ ...options, max_tokens: 100, output_config })).parsed_output);
  await refused(client.messages.create({ ...options, max_tokens: 0 }), 400, "max_tokens");
}

async function check(url) {
  const chat = await checkOpenAI(url);
  await checkAnthropic(url, chat);
  return `chat, streams, tools, formats, responses and errors: ${JSON.stringify(chat.text)}`;
}

/** Runs this file in headless Chromium, on a page of another origin. Returns what the page reports. */
async function checkInBrowser(url) {
  const [esbuild, http, fs, os, path, { spawn }] = await Promise.all(
    ["esbuild", "node:http", "node:fs", "node:os", "node:path", "node:child_process"].map((name) => import(name)),
  );
  const bundle = await esbuild.build({ entryPoints: [import.meta.filename], bundle: true, write: false, format: "esm" });
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "check-clients-"));
  let report;
  const reported = new Promise((resolve) => (report = resolve));
  const page = http.createServer((request, response) => {
    if (request.method === "POST") {
      let text = "";
      request.on("data", (piece) => (text += piece)).on("end", () => (response.end(), report(text)));
    } else if (request.url === "/check.js") {
      response.setHeader("Content-Type", "text/javascript").end(bundle.outputFiles[0].contents);
    } else {
      response.setHeader("Content-Type", "text/html").end('<!doctype html><script type="module" src="/check.js"></script>');
    }
  });
  await new Promise((resolve) => page.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${page.address().port}/?server=${encodeURIComponent(url)}`;
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", `--user-data-dir=${folder}`, address];
  const browser = spawn(process.env.CHROMIUM ?? "/usr/bin/chromium", flags, { stdio: "ignore" });
  browser.on("error", (error) => report(`failed: ${error}`));
  const limit = setTimeout(() => report("failed: the page reports nothing within 120 s"), 120_000);
  const text = await reported;
  clearTimeout(limit);
  const closed = new Promise((resolve) => browser.on("close", resolve).on("error", resolve));
  browser.kill();
  await closed;
  page.close();
  page.closeAllConnections();
  fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  if (text.startsWith("failed")) throw new Error(text);
  return text;
}

if (typeof document !== "undefined") {
  const url = new URLSearchParams(location.search).get("server");
  const text = await check(url).catch((error) => `failed: ${error.stack ?? error}`);
  await fetch("/", { method: "POST", body: text });
} else if (process.argv[3] === "--browser") {
  console.log("in a browser:", await checkInBrowser(process.argv[2]));
} else {
  console.log(await check(process.argv[2]));
}
