"use strict";

/* Draws the timeline of an answer. Used by the playground and by the page of one answer.
   An answer has the fields of `Generation` as JSON. */
const pasta = (() => {
  const HUES = [255, 150, 315, 25, 200, 120, 345, 285];
  const SVG = "http://www.w3.org/2000/svg";

  /** An element with attributes and children; text is always text, never markup. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function draw(tag, attributes, parent) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    parent.append(element);
    return element;
  }

  /** Give an element the colour of a thread. */
  function tint(element, thread) {
    element.dataset.thread = thread;
    if (thread > 0) element.style.setProperty("--hue", HUES[(thread - 1) % HUES.length]);
    return element;
  }

  const nameOf = (record) => (record.thread ? `${record.thread} ${record.topic}`.trim() : "main");
  const seconds = (time) => `${time < 10 ? time.toFixed(2) : time.toFixed(1)} s`;
  const times = (ratio) => `${ratio.toFixed(2)}×`;
  const tokens = (count) => `${count} ${count === 1 ? "token" : "tokens"}`;

  /** Seconds between two marks of the axis. */
  function step(longest, marks) {
    const rough = longest / marks;
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  }

  /** The times from which and to which a thread decoded; a request under way lasts until now. */
  const stretchesOf = (record, answer) =>
    record.requests.map(({ started, ended }) => ({ start: started, end: ended ?? answer.elapsed }));

  /** Threads that main waited for, and when: from `waiting` until the last was done, at `kept`; it went on at `joined`. */
  function roundsOf(answer) {
    const main = answer.threads[0].thread ? [] : stretchesOf(answer.threads[0], answer); // a plan has no main
    const rounds = [];
    const isLost = (record) => ["abort", "error"].includes(record.finish_reason);
    let before = 0; // the last thread of the rounds so far
    for (const [index, span] of main.entries()) {
      const open = answer.threads.filter((record) => record.thread > before && record.opened <= span.end);
      if (isLost(answer) && open.some(isLost)) break;
      const threads = open.filter((record) => !isLost(record)); // others lie behind the answer's limit
      if (!threads.length) continue;
      const joined = main[index + 1]?.start ?? answer.elapsed;
      const kept = Math.max(...threads.map((record) => record.ended ?? answer.elapsed));
      const goesOn = joined === span.end && answer.threads[0].ended === null; // main decodes at this moment
      if (kept > joined || goesOn) continue; // no sync: main's request was sent again
      rounds.push({ threads: threads.map((record) => record.thread), waiting: Math.min(span.end, kept), kept, joined });
      before = threads.at(-1).thread;
    }
    return rounds;
  }

  function rowsOf(answer, baseline) {
    const row = (key, name, record, whole) => ({ key, name, record, stretches: stretchesOf(record, whole) });
    const rows = answer.threads.map((record) => row(record.thread, nameOf(record), record, answer));
    if (baseline) rows.push(row("baseline", "baseline", baseline.threads[0], baseline));
    return rows;
  }

  function trackOf(row, answer, rounds, at) {
    const track = make("div", { class: "timeline-track" });
    const place = (kind, start, end) => {
      const mark = make("span", { class: kind });
      mark.style.left = `${at(start)}%`;
      if (end !== undefined) mark.style.width = `${at(end) - at(start)}%`;
      track.append(mark);
      return mark;
    };
    const first = row.record.first_token;
    for (const span of row.stretches) {
      const decodes = first === null ? span.end : Math.min(Math.max(first, span.start), span.end);
      if (decodes > span.start) place("timeline-bar prefill", span.start, decodes);
      if (decodes < span.end) place("timeline-bar", decodes, span.end);
    }
    if (row.key === 0) {
      for (const round of rounds) if (round.kept > round.waiting) place("timeline-wait", round.waiting, round.kept);
      for (const record of answer.threads) if (record.thread) tint(place("timeline-tick", record.opened), record.thread);
    }
    return track;
  }

  function inWords(row) {
    const stretches = row.stretches.map((span) => `from ${seconds(span.start)} to ${seconds(span.end)}`);
    return stretches.length ? `decoded ${stretches.join(", ")}` : "has not decoded";
  }

  /** Lines from each promise to its thread and from there to where main went on. */
  function links(svg, answer, rounds, at, rows) {
    if (answer.threads[0].thread) return; // the fields of a plan: no thread forks another
    const middle = (index) => (index + 0.5) * (100 / rows);
    const curve = (kind, thread, from, to) => {
      const [x1, y1, x2, y2] = [from.time, middle(from.row), to.time, middle(to.row)];
      const bend = (y1 + y2) / 2;
      const d = `M${at(x1)} ${y1}C${at(x1)} ${bend} ${at(x2)} ${bend} ${at(x2)} ${y2}`;
      tint(draw("path", { d, class: kind }, svg), thread);
    };
    answer.threads.forEach((record, row) => {
      if (!record.thread || record.started === null) return;
      curve("fork", record.thread, { time: record.opened, row: 0 }, { time: record.started, row });
      const round = rounds.find((joined) => joined.threads.includes(record.thread));
      if (round && record.ended !== null) {
        curve("join", record.thread, { time: record.ended, row }, { time: round.joined, row: 0 });
      }
    });
  }

  /** Draw an answer, and its baseline below it, into an element. */
  function timeline(host, answer, baseline = null) {
    const rounds = roundsOf(answer);
    const rows = rowsOf(answer, baseline);
    const longest = Math.max(answer.elapsed, baseline ? baseline.elapsed : 0, 1e-6);
    const at = (time) => Math.min(100, Math.max(0, (100 * time) / longest));
    const list = make("ol", { class: "timeline-rows", role: "list" });
    const overlay = make("li", { "aria-hidden": "true" });
    const svg = draw("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", class: "timeline-links" }, overlay);
    const axis = make("div", { class: "timeline-axis", "aria-hidden": "true" });
    const marks = host.clientWidth < 480 ? 3 : 6;
    for (let time = 0, by = step(longest, marks); time <= longest; time += by) {
      draw("line", { x1: at(time), x2: at(time), y1: 0, y2: 100 }, svg);
      const mark = make("span", {}, time ? `${Number(time.toPrecision(3))} s` : "0");
      mark.style.left = `${at(time)}%`;
      if (at(time) < 97) axis.append(mark);
    }
    links(svg, answer, rounds, at, rows.length);
    svg.style.gridRow = `1 / span ${rows.length}`;
    list.append(overlay);
    rows.forEach((row, index) => {
      const name = make("span", { class: "timeline-name", title: row.name }, row.name);
      const spoken = make("span", { class: "unseen" }, `: ${inWords(row)}, `);
      const count = make("span", { class: "timeline-tokens" }, spoken, tokens(row.record.tokens));
      const item = tint(make("li", {}, name, trackOf(row, answer, rounds, at), count), row.key);
      for (const [column, child] of [...item.children].entries()) {
        child.style.gridArea = `${index + 1} / ${column + 1}`;
      }
      list.append(item);
    });
    axis.style.gridRow = rows.length + 1;
    list.append(make("li", {}, axis));
    host.replaceChildren(list);
  }

  /** The tokens in sequence that an answer is compared with, and their time: its own text, or the shorter baseline. */
  function inSequence(answer, baseline) {
    const plain = baseline.usage.completion_tokens;
    const count = Math.min(answer.text_tokens + 1, plain);
    return { count, elapsed: (baseline.elapsed * count) / (plain || 1), own: count < plain };
  }

  /** The gain as [value, meaning] pairs; the first is the one to look at. */
  function numbers(answer, baseline) {
    const pairs = [];
    if (baseline) {
      const { count, elapsed, own } = inSequence(answer, baseline);
      const instead = `${seconds(answer.elapsed)} instead of ${seconds(elapsed)}${own ? " for the same text" : ""}`;
      pairs.push([times(elapsed / answer.elapsed), `speed-up, measured: ${instead}`]);
      pairs.push([times(count / answer.critical_path), `in theory: ${count} / ${answer.critical_path} tokens`]);
    } else {
      pairs.push([times(answer.text_speedup), "speed-up by counting: text / critical path"]);
      pairs.push([seconds(answer.elapsed), "from start to end"]);
    }
    pairs.push([String(answer.critical_path), "tokens one after another"]);
    pairs.push([String(answer.usage.completion_tokens), "tokens decoded, tags counted"]);
    pairs.push([String(answer.threads.length), answer.threads.length === 1 ? "thread" : "threads"]);
    return pairs;
  }

  function showNumbers(list, answer, baseline) {
    list.replaceChildren(
      ...numbers(answer, baseline).map(([value, meaning], index) =>
        make("div", { class: index ? "" : "main-number" }, make("dt", {}, meaning), make("dd", {}, value)),
      ),
    );
  }

  return { make, draw, tint, nameOf, seconds, tokens, timeline, inSequence, showNumbers };
})();
