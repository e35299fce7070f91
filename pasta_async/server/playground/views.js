"use strict";

/* The view of one answer while it decodes: its lanes, its text in reading order, its timeline so far. */
const views = (() => {
  const { make, tint, nameOf, tokens } = pasta;
  const ENDED = {
    stop: "done",
    length: "cut at its limit",
    abort: "stopped",
    error: "failed",
  };

  /** One thread's card: its name, its progress, its text so far. */
  class Lane {
    constructor(host, key, name, estimate) {
      this.estimate = estimate;
      this.pieces = 0;
      this.doing = make("span", { class: "doing" });
      this.count = make("span", { class: "count" });
      this.progress = make("progress", { max: "1", value: "0", "aria-label": `${name}: progress` });
      this.said = make("div", { class: "said", tabindex: "0", role: "region", "aria-label": `${name}: text` });
      const heading = make("h3", { title: name }, name);
      const header = make("header", {}, heading, this.count, this.doing);
      this.card = tint(make("article", { class: "lane", "aria-label": name }, header, this.progress, this.said), key);
      host.append(this.card);
    }

    state(name, words = name) {
      this.card.dataset.state = name;
      this.doing.textContent = words;
    }

    add(delta) {
      this.pieces += 1;
      this.said.append(delta);
      this.count.textContent = this.estimate ? `${this.pieces} / ${this.estimate}` : String(this.pieces);
      this.progress.value = this.estimate ? Math.min(this.pieces / this.estimate, 0.97) : 0.5;
      this.unseen = true;
    }

    /** A promise or a sync, where it stands in the text. */
    mark(element) {
      this.said.append(element);
      this.unseen = true;
      return element;
    }

    /** The text so far is void: the answer ends before it or in it. */
    replaced(text) {
      this.said.replaceChildren(text);
    }

    done(record) {
      this.count.textContent = tokens(record.tokens);
      this.progress.value = 1;
      const state = { abort: "stopped", error: "failed" }[record.finish_reason] ?? "done";
      this.state(state, ENDED[record.finish_reason]);
    }

    scroll() {
      if (this.unseen) this.said.scrollTop = this.said.scrollHeight;
      this.unseen = false;
    }
  }

  /** The visible text in reading order, each stretch in the colour of the thread that wrote it. */
  class Prose {
    constructor(host) {
      this.host = host;
      this.host.replaceChildren();
      this.parts = [];
      this.at = 0;
      this.open(0);
    }

    open(thread) {
      const span = tint(make("span"), thread);
      this.host.append(span);
      this.parts.push({ thread, span, text: "", shown: 0 });
    }

    promise(thread) {
      this.open(thread);
      this.open(0);
    }

    decoded(thread, delta) {
      const part = thread ? this.parts.find((candidate) => candidate.thread === thread) : this.parts.at(-1);
      part.text += delta;
    }

    /** The text of a thread so far is void: the answer ends before it or in it. */
    replaced(thread, text) {
      const part = this.parts.find((candidate) => candidate.thread === thread);
      const seen = part.span.textContent;
      part.text = text;
      part.shown = text.length;
      while (part.shown && !seen.endsWith(text.slice(0, part.shown))) part.shown -= 1;
    }

    show(delta) {
      while (delta) {
        const part = this.parts[this.at];
        const waiting = part.text.slice(part.shown);
        let size = 0;
        while (size < waiting.length && waiting[size] === delta[size]) size += 1;
        if (!size && !waiting && this.at + 1 < this.parts.length) {
          this.at += 1;
          continue;
        }
        part.span.append(delta.slice(0, size || delta.length));
        part.shown += size;
        delta = delta.slice(size || delta.length);
      }
    }

    /** The server's final text replaces the text that was put together here, if they differ. */
    settle(text) {
      if (this.host.textContent !== text) this.host.replaceChildren(text);
    }
  }

  /** The threads so far, in the form of a finished answer's. Times are the server's. */
  class Clock {
    constructor() {
      this.threads = [];
      this.began = Infinity;
    }

    get now() {
      return Number.isFinite(this.began) ? performance.now() / 1000 - this.began : 0;
    }

    /** A time on the server. The message that was fastest gives the best estimate of when the answer began. */
    told(time) {
      this.began = Math.min(this.began, performance.now() / 1000 - time);
    }

    promise(thread, topic, time) {
      this.threads[thread] = {
        thread, topic, tokens: 0, opened: time, started: null, first_token: null, ended: null, requests: [],
      };
    }

    start(thread, time) {
      this.pause(thread, time);
      this.threads[thread].started ??= time;
      this.threads[thread].requests.push({ started: time, ended: null });
    }

    heard(thread) {
      this.threads[thread].first_token ??= this.now;
      this.threads[thread].tokens += 1;
    }

    pause(thread, time) {
      const request = this.threads[thread].requests.at(-1);
      if (request) request.ended ??= time;
    }

    done(record) {
      this.threads[record.thread] = record;
      this.pause(record.thread, record.ended ?? this.now); // its last request is closed only after this event
    }

    /** The records of threads that decode at this moment. */
    get running() {
      return Object.values(this.threads).filter((record) => record.requests.at(-1)?.ended === null);
    }

    stop() {
      for (const { thread } of this.running) this.pause(thread, this.now);
    }

    /** The answer so far; null before anything decodes. */
    get answer() {
      const threads = Object.values(this.threads);
      const requests = threads.flatMap((record) => record.requests);
      if (!requests.length) return null;
      return { threads, elapsed: Math.max(this.now, ...requests.map((request) => request.ended ?? 0)) };
    }
  }

  const promiseTag = (event) =>
    tint(make("span", { class: "tag" }, `promise ${nameOf(event)}${event.tokens ? ` · ${event.tokens}` : ""}`), event.thread);
  const syncTag = () => make("span", { class: "tag sync waiting" }, "sync · waits");

  return { Lane, Prose, Clock, promiseTag, syncTag };
})();
