"use strict";

/* A plan before and while it is filled: its form, the report of the server's check, its graph. */
const plans = (() => {
  const { make, draw, tint, tokens } = pasta;
  const NODE = { width: 150, height: 40, across: 190, down: 52 };

  const list = (topic, more) => ({
    type: "array", items: { type: "string", maxLength: 60 }, minItems: 1, maxItems: 4, description: topic, ...more,
  });
  const object = (properties) => ({ type: "object", properties, required: Object.keys(properties) });
  const EXAMPLES = {
    "Hotel review": {
      prompt: "Sum up this review of a hotel.\n\nThe room was clean and the staff friendly, but the wifi never worked, and breakfast was cold.",
      schema: object({
        strengths: list("what was good", { "x-pasta": { tokens: 60 } }),
        weaknesses: list("what was bad", { "x-pasta": { tokens: 60 } }),
        stars: { type: "integer", minimum: 1, maximum: 5, "x-pasta": { after: ["strengths", "weaknesses"] } },
        verdict: { type: "string", "x-pasta": { after: ["stars"], tokens: 60 } },
      }),
    },
    Report: {
      prompt: "Write a short report on trees in cities.",
      schema: object({
        sections: {
          type: "array",
          items: object({
            heading: { type: "string", maxLength: 40 },
            text: { type: "string", "x-pasta": { after: [], tokens: 80 } },
          }),
          minItems: 2,
          maxItems: 4,
          "x-pasta": { tokens: 80 },
        },
        summary: { type: "string", "x-pasta": { after: ["sections"], tokens: 60 } },
      }),
    },
  };

  /** The schema that the user has typed. */
  function read(text) {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new api.Trouble(`The form is no JSON: ${error.message}`);
    }
  }

  const holeOf = (path) => path.replace(/\[\d+\]/, "[]");

  function showVerdict(verdict, findings, report, trouble) {
    const bounds = report?.bounds;
    const words = { yes: "This plan can be kept", no: "This plan cannot be kept" };
    const most = bounds && `: at most ${tokens(bounds.tokens)}, ${bounds.critical_path} one after another, ${bounds.width} fields at once`;
    verdict.dataset.verdict = report?.verdict ?? "no";
    verdict.textContent = report ? `${words[report.verdict]}${most ?? ""}.` : trouble;
    findings.replaceChildren(
      ...(report?.findings ?? []).map((finding) => {
        const item = make("li", {}, make("strong", {}, finding.hole || "plan"), ` ${finding.message} `, make("code", {}, finding.code));
        item.dataset.verdict = finding.verdict;
        return item;
      }),
    );
  }

  /** A column for each step of the longest chain, and a line from each field to those that wait for it. */
  class Graph {
    constructor(host, { sees, tokens: most, findings }, plan) {
      this.plan = plan; // the text that it was made of
      this.most = most;
      this.nodes = new Map();
      this.running = new Map(); // threads that write it now, by the field's name
      const names = Object.keys(sees);
      const depth = {};
      for (const name of [...names].sort((a, b) => sees[a].length - sees[b].length)) {
        depth[name] = 1 + Math.max(-1, ...sees[name].map((seen) => depth[seen] ?? -1));
      }
      const rows = [];
      const place = (name) => {
        rows[depth[name]] = (rows[depth[name]] ?? -1) + 1;
        return { x: depth[name] * NODE.across, y: rows[depth[name]] * NODE.down };
      };
      const places = Object.fromEntries(names.map((name) => [name, place(name)]));
      const lines = names.map((name) => `${name} ${sees[name].length ? `after ${sees[name].join(", ")}` : "at once"}`);
      const width = rows.length * NODE.across - (NODE.across - NODE.width) + 2;
      const height = (Math.max(0, ...rows) + 1) * NODE.down - (NODE.down - NODE.height) + 2;
      const svg = draw("svg", { viewBox: `-1 -1 ${width} ${height}`, width, height, role: "img", "aria-label": lines.join("; ") }, host);
      for (const name of names) {
        const beyond = new Set(sees[name].flatMap((seen) => (seen === name ? [] : sees[seen])));
        for (const seen of sees[name]) if (!beyond.has(seen) && seen !== name) this.edge(svg, places[seen], places[name]);
      }
      const bad = new Set(findings.filter((finding) => finding.verdict === "no").map((finding) => finding.hole));
      for (const name of names) this.node(svg, name, places[name], bad.has(name));
    }

    edge(svg, from, to) {
      const [x1, y1, x2, y2] = [from.x + NODE.width, from.y + NODE.height / 2, to.x, to.y + NODE.height / 2];
      draw("path", { d: `M${x1} ${y1}C${x1 + 20} ${y1} ${x2 - 20} ${y2} ${x2} ${y2}`, class: "edge" }, svg);
    }

    node(svg, name, { x, y }, isBad) {
      const group = draw("g", { transform: `translate(${x} ${y})`, class: "hole", "data-hole": name }, svg);
      if (isBad) group.dataset.state = "failed";
      draw("title", {}, group).textContent = name;
      draw("rect", { width: NODE.width, height: NODE.height, rx: 8 }, group);
      draw("text", { x: 10, y: 17 }, group).textContent = name.length > 18 ? `${name.slice(0, 17)}…` : name;
      draw("text", { x: 10, y: 32, class: "most" }, group).textContent = `at most ${tokens(this.most[name])}`;
      this.nodes.set(name, group);
    }

    /** Token limit of the field that a thread writes. */
    tokens(path) {
      return this.most[holeOf(path)];
    }

    begin(path, thread) {
      const node = this.nodes.get(holeOf(path));
      if (node) tint(node, thread);
      this.count(path, 1);
    }

    end(path) {
      this.count(path, -1);
    }

    /** The items of a list have a thread each, and one node. */
    count(path, change) {
      const hole = holeOf(path);
      const running = (this.running.get(hole) ?? 0) + change;
      this.running.set(hole, running);
      const node = this.nodes.get(hole);
      if (node) node.dataset.state = running ? "decodes" : "done";
    }

    /** The run ended early: what was under way is written no more. */
    stop() {
      for (const node of this.nodes.values()) if (node.dataset.state === "decodes") delete node.dataset.state;
    }

    /** Nothing is written yet. */
    clear() {
      this.running.clear();
      for (const node of this.nodes.values()) delete node.dataset.state;
    }
  }

  return { EXAMPLES, Graph, read, showVerdict };
})();
