"use strict";

/* The server's API: its model, and answers as streams. */
const api = (() => {
  /** An error whose message is for the user of the page. */
  class Trouble extends Error {
    constructor(message, { needsKey = false } = {}) {
      super(message);
      this.needsKey = needsKey;
    }
  }

  function headers(key) {
    if (/[^\x20-\x7e\x80-\xff]/.test(key ?? "")) {
      throw new Trouble("The key has a character that no header takes.", { needsKey: true });
    }
    return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  }

  async function reach(path, options) {
    try {
      return await fetch(path, { credentials: "omit", cache: "no-store", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Trouble("The server cannot be reached. Is it still running?");
    }
  }

  /** The error in a response that refuses a request; the server sends errors in OpenAI's form. */
  async function refusal(response) {
    if (response.status === 401) {
      return new Trouble("The server wants an API key: put it into the settings.", { needsKey: true });
    }
    let message = `The server answered ${response.status} ${response.statusText}`.trim();
    try {
      message = (await response.json()).error.message;
    } catch {
      // the response of some proxy in between: its status is all there is
    }
    const wait = Number(response.headers.get("Retry-After"));
    return new Trouble(wait ? `${message} Try again in ${wait} s.` : message);
  }

  /** The name of the server's model. */
  async function model(key) {
    const response = await reach("v1/models", { headers: headers(key) });
    if (!response.ok) throw await refusal(response);
    return (await response.json()).data[0].id;
  }

  /** The report of the server's check of the plan in a schema. */
  async function check(plan, { key, signal }) {
    const options = { method: "POST", headers: headers(key), body: JSON.stringify(plan), signal };
    const response = await reach("v1/plans/check", options);
    if (!response.ok) throw await refusal(response);
    return response.json();
  }

  /** The lines of a body, as they come. */
  async function* lines(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        const parts = (rest + value).split("\n");
        rest = parts.pop();
        yield* parts;
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  /** The chunks of one answer. Aborting `signal` closes the connection, which ends the answer on the server. */
  async function* ask(question, { key, signal }) {
    const body = JSON.stringify({ ...question, stream: true });
    const response = await reach("v1/chat/completions", { method: "POST", headers: headers(key), body, signal });
    if (!response.ok) throw await refusal(response);
    try {
      for await (const line of lines(response.body)) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Trouble(chunk.error.message);
        yield chunk;
      }
    } catch (error) {
      if (error.name === "AbortError" || error instanceof Trouble) throw error;
    }
    throw new Trouble("The connection broke off before the answer was done.");
  }

  return { Trouble, model, check, ask };
})();
