// Requests to the server that this page comes from.

/** A request that the server refused. */
export class RequestError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers(key) {
  const fields = { "Content-Type": "application/json" };
  if (key) fields.Authorization = `Bearer ${key}`;
  return fields;
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const { message, code } = body?.error ?? {};
  throw new RequestError(response.status, message ?? `The server answered with status ${response.status}.`, code);
}

export async function properties(key) {
  const response = await checked(await fetch("props", { headers: headers(key) }));
  return response.json();
}

/** Yields the chunks of a streamed answer, with the number of messages that the context has no room for. */
export async function* streamAnswer(body, key, signal) {
  const request = { method: "POST", headers: headers(key), body: JSON.stringify(body), signal };
  const response = await checked(await fetch("v1/chat/completions", request));
  const leftOut = Number(response.headers.get("forerun-messages-left-out"));
  for await (const data of eventData(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new RequestError(200, chunk.error.message, chunk.error.code);
    yield { ...chunk, leftOut };
  }
  throw new Error("The connection ended before the answer did.");
}

/** Yields the data of server-sent events. */
async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      const lines = text.split("\n");
      text = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
