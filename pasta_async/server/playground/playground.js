"use strict";

/* The page: sends prompts, shows answers, compares. Text of the model is only inserted as text, never as markup. */
(() => {
  const { make, seconds, timeline, inSequence, showNumbers } = pasta;
  const { Lane, Prose, Clock, promiseTag, syncTag } = views;
  const by = (id) => document.getElementById(id);
  const DRAW_EVERY = 80; // milliseconds
  const NARROW = matchMedia("(max-width: 60rem)");

  const EXAMPLES = {
    Compare: { prompt: "Compare tea and coffee: taste, caffeine, and how each is made." },
    Plan: { prompt: "Plan a weekend in Lisbon for two: food, sights and evenings." },
    Explain: { prompt: "Explain photosynthesis to a child, to a student and to a chemist." },
  };

  let model = null;
  let running = null; // the run under way
  let answered = null; // the last answer that is whole: { generation, prompt, schema }
  let graph = null; // of the plan in the form, as the server has checked it
  let checking = null; // the check under way

  // One run -----------------------------------------------------------------------------------------------

  /** One answer, from the request to the last event. */
  class Run {
    constructor(prompt, schema = null) {
      this.prompt = prompt;
      this.schema = schema; // of the object that is asked for, if it is one
      this.stopper = new AbortController();
      this.clock = new Clock();
      this.lanes = [];
      this.generation = null;
      this.drawn = 0;
    }

    get question() {
      const limits = by("threads").value ? { max_threads: Number(by("threads").value) } : {};
      return {
        model: model ?? "default",
        messages: [{ role: "user", content: this.prompt }],
        temperature: Number(by("temperature").value || 0),
        ...(by("tokens").value ? { max_tokens: Number(by("tokens").value) } : {}),
        ...(this.schema ? { response_format: { type: "json_schema", json_schema: { name: "form", schema: this.schema } } } : {}),
        pasta: { events: true, record: true, limits, ...this.options },
      };
    }

    async go() {
      const access = { key: by("key").value, signal: this.stopper.signal };
      for await (const chunk of api.ask(this.question, access)) {
        if (chunk.pasta?.event) this.hear(chunk.pasta.event);
        for (const choice of chunk.choices) if (choice.delta.content) this.show(choice.delta.content);
        if (chunk.pasta?.choices?.length) this.generation = chunk.pasta.choices[0];
        this.draw();
      }
      this.clock.stop();
    }

    hear(event) {
      if (event.time !== undefined) this.clock.told(event.time);
      this.on[event.type]?.call(this, event);
    }

    picture() {
      const answer = this.generation ?? this.clock.answer;
      if (answer) timeline(by("timeline"), answer);
    }

    draw({ now = false } = {}) {
      if (!now && performance.now() - this.drawn < DRAW_EVERY) return;
      this.drawn = performance.now();
      for (const lane of this.lanes) lane?.scroll();
      this.picture();
    }

    /** The run ended early: the answer so far stays on the page. */
    broken() {
      this.clock.stop();
      const ended = (lane) => ["done", "failed"].includes(lane.card.dataset.state);
      for (const lane of this.lanes) if (lane && !ended(lane)) lane.state("stopped", "stopped");
      this.draw({ now: true });
    }
  }

  /** The answer, decoded in parallel. */
  class Answer extends Run {
    options = { baseline: false };

    constructor(prompt) {
      super(prompt);
      clear();
      by("times-key").hidden = false;
      this.prose = new Prose(by("answer"));
      this.clock.promise(0, "", 0);
      this.lanes.push(new Lane(by("lanes"), 0, "main", null));
      this.lanes[0].state("queued", "waits for the server");
    }

    show(delta) {
      this.prose.show(delta);
    }

    finish() {
      const { elapsed } = this.generation;
      this.prose.settle(this.generation.text);
      showNumbers(by("numbers"), this.generation, null);
      this.draw({ now: true });
      answered = { generation: this.generation, prompt: this.prompt };
      const threads = this.generation.threads.length;
      const why = this.generation.width === "plain" ? this.generation.notes.join("; ") : "nothing here was independent";
      tell(`Done in ${seconds(elapsed)}, with ${threads === 1 ? `one thread: ${why}` : `${threads} threads`}.`);
    }

    tellHowMany() {
      const count = this.clock.running.length;
      if (count) tell(count > 1 ? `${count} threads decode at the same time …` : "One thread decodes …");
    }

    on = {
      "promise.opened"(event) {
        const { thread, topic, tokens: estimate, time } = event;
        this.clock.promise(thread, topic, time);
        this.prose.promise(thread);
        this.lanes[0].mark(promiseTag(event));
        this.lanes[thread] = new Lane(by("lanes"), thread, pasta.nameOf(event), estimate);
        this.lanes[thread].state("queued");
      },
      "thread.started"({ thread, time }) {
        this.clock.start(thread, time);
        this.lanes[thread].state("decodes");
        this.tellHowMany();
      },
      "thread.delta"({ thread, delta }) {
        this.clock.heard(thread);
        this.prose.decoded(thread, delta);
        this.lanes[thread].state("decodes"); // it may have failed, and go on
        this.lanes[thread].add(delta);
      },
      "thread.replaced"({ thread, text }) {
        if (thread) this.prose.replaced(thread, text);
        this.lanes[thread].replaced(text);
      },
      "thread.done"({ thread, record }) {
        this.clock.done(record);
        this.lanes[thread].done(record);
        this.tellHowMany();
      },
      "thread.failed"({ thread, error, action }) {
        const words = { retry: "tries again", fail: "failed" };
        this.lanes[thread].state(action === "fail" ? "failed" : "queued", words[action]);
        this.lanes[thread].card.title = error.message;
      },
      "sync.waiting"({ time }) {
        this.clock.pause(0, time);
        this.tellHowMany();
        this.sync = this.lanes[0].mark(syncTag());
        this.lanes[0].state("waits", "waits for its threads");
      },
      "sync.joined"({ time }) {
        this.clock.start(0, time);
        this.sync?.classList.remove("waiting");
        this.sync?.replaceChildren("sync · joined");
        this.lanes[0].state("decodes");
        this.tellHowMany();
      },
    };
  }

  /** A form, whose fields are written in parallel. */
  class Filling extends Run {
    options = { plan: true };

    constructor(prompt, schema) {
      super(prompt, schema);
      clear();
      by("answer").classList.add("json");
      by("answer").replaceChildren();
      graph?.clear();
      this.threads = new Map(); // by the path of the field that they write
    }

    show(delta) {
      by("answer").append(delta);
    }

    finish() {
      const whole = this.generation;
      by("answer").textContent = JSON.stringify(JSON.parse(whole.text), null, 2);
      for (const record of whole.threads) this.lanes[record.thread].done(record);
      showNumbers(by("numbers"), whole, null);
      this.draw({ now: true });
      answered = { generation: whole, prompt: this.prompt, schema: this.schema };
      const path = `${whole.critical_path} of ${whole.usage.completion_tokens} tokens one after another`;
      tell(`Done in ${seconds(whole.elapsed)}: ${whole.threads.length} threads, ${path}.`);
    }

    broken() {
      super.broken();
      graph?.stop();
    }

    on = {
      "field.started"({ path, thread, time }) {
        this.threads.set(path, thread);
        if (!this.lanes[thread]) {
          const name = pasta.nameOf({ thread, topic: path });
          this.lanes[thread] = new Lane(by("lanes"), thread, name, graph?.tokens(path));
          this.clock.promise(thread, path, time);
          graph?.begin(path, thread);
        }
        this.lanes[thread].replaced(""); // it may have failed, and begin anew
        this.lanes[thread].state("decodes");
        this.clock.start(thread, time);
        const count = this.clock.running.length;
        tell(`${count === 1 ? "One field is" : `${count} fields are`} being written …`);
      },
      "field.delta"({ path, delta }) {
        const thread = this.threads.get(path);
        this.clock.heard(thread);
        this.lanes[thread].add(delta);
      },
      "field.done"({ path }) {
        const thread = this.threads.get(path);
        this.clock.pause(thread, this.clock.now);
        this.lanes[thread].state("done");
        graph?.end(path);
      },
    };
  }

  /** The same prompt answered without any tag, or the same form filled in sequence, beside the answer. */
  class Baseline extends Run {
    constructor(prompt, schema) {
      super(prompt, schema);
      this.options = schema ? { plan: false } : { baseline: true };
      by("lanes").querySelector('[data-thread="baseline"]')?.remove();
      this.clock.promise(0, "", 0);
      this.lanes.push(new Lane(by("lanes"), "baseline", "baseline", answered.generation.text_tokens));
      this.lanes[0].state("queued", "waits for the server");
      this.lanes[0].card.scrollIntoView({ block: "nearest" });
    }

    show(delta) {
      if (this.schema) this.lanes[0].add(delta);
    }

    picture() {
      const { generation } = answered;
      timeline(by("timeline"), generation, this.generation ?? this.clock.answer);
    }

    finish() {
      this.lanes[0].done(this.generation.threads[0]);
      this.draw({ now: true });
      showNumbers(by("numbers"), answered.generation, this.generation);
      const ratio = inSequence(answered.generation, this.generation).elapsed / answered.generation.elapsed;
      const words = ratio >= 1 ? `${ratio.toFixed(2)} times as fast as` : `slower than`;
      tell(`The parallel answer was ${words} the same text one token after another.`);
    }

    on = {
      "thread.started"({ time }) {
        this.clock.start(0, time);
        this.lanes[0].state("decodes");
      },
      "thread.delta"({ delta }) {
        this.clock.heard(0);
        this.lanes[0].add(delta);
      },
      "thread.done"({ record }) {
        this.clock.done(record);
      },
      "field.started"({ time }) {
        this.clock.start(0, time);
        this.lanes[0].state("decodes");
      },
      "field.delta"() {
        this.clock.heard(0);
      },
    };
  }

  // The page ----------------------------------------------------------------------------------------------

  const tell = (words) => {
    by("state").textContent = words;
  };

  const asksForPlan = () => by("ask").elements.kind.value === "plan";

  /** Make room for another answer. */
  function clear() {
    for (const id of ["lanes", "numbers", "timeline"]) by(id).replaceChildren();
    by("times-key").hidden = true;
    by("answer").classList.remove("json");
  }

  function complain(error) {
    const known = error instanceof api.Trouble;
    if (!known) console.error(error);
    by("problem").textContent = known ? error.message : `The page itself failed: ${error.message}`;
    by("problem").hidden = false;
    tell("");
    if (error.needsKey) {
      by("settings").open = true;
      by("key").focus();
    }
  }

  function busy(run) {
    const [shown, gone] = run ? [by("stop"), by("run")] : [by("run"), by("stop")];
    const moves = document.activeElement === gone;
    running = run;
    shown.hidden = false;
    gone.hidden = true;
    if (moves) shown.focus();
    by("compare").disabled = Boolean(run) || !answered;
    const isAnswer = Boolean(run) && !(run instanceof Baseline);
    by("answer").setAttribute("aria-busy", String(isAnswer));
    document.querySelector(".answer").toggleAttribute("data-busy", isAnswer);
  }

  async function perform(run) {
    by("problem").hidden = true;
    busy(run);
    tell("Asking …");
    try {
      await run.go();
      run.finish();
    } catch (error) {
      run.broken();
      if (error.name === "AbortError") tell("Stopped. The server ends every thread of it.");
      else complain(error);
    } finally {
      busy(null);
      examine(); // the form may have changed meanwhile
    }
  }

  function answer() {
    const prompt = by("prompt").value;
    if (running) return;
    if (!prompt.trim()) {
      complain(new api.Trouble("Write a prompt first."));
      by("prompt").focus();
      return;
    }
    let schema = null;
    try {
      if (asksForPlan()) schema = plans.read(by("schema").value);
    } catch (error) {
      complain(error);
      by("schema").focus();
      return;
    }
    answered = null;
    perform(schema ? new Filling(prompt, schema) : new Answer(prompt));
    if (NARROW.matches) by("state").scrollIntoView({ block: "start" });
  }

  /** Show the plan as it is written: the report of the server's check, and its graph. */
  async function examine() {
    checking?.abort();
    if (!asksForPlan()) return;
    checking = new AbortController();
    const { signal } = checking;
    const plan = `${by("tokens").value} ${by("schema").value}`; // all that is checked
    const limit = by("tokens").value ? { max_tokens: Number(by("tokens").value) } : {};
    let report = null;
    let trouble = "";
    try {
      report = await api.check({ schema: plans.read(by("schema").value), ...limit }, { key: by("key").value, signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      trouble = error.message;
    }
    plans.showVerdict(by("verdict"), by("findings"), report, trouble);
    if (running || (report && graph?.plan === plan)) return; // the graph stays, and shows the run
    by("graph").replaceChildren();
    graph = report && new plans.Graph(by("graph"), report, plan);
  }

  /** Switch between an answer in text and a plan; empty fields get an example. */
  function choose(kind) {
    by("ask").elements.kind.value = kind;
    by("plan").hidden = kind !== "plan";
    by("run").textContent = kind === "plan" ? "Fill" : "Answer";
    offerExamples();
    examine();
  }

  function offerExamples() {
    const examples = asksForPlan() ? plans.EXAMPLES : EXAMPLES;
    const [first] = Object.values(examples);
    const write = ({ prompt, schema }) => {
      by("prompt").value = prompt;
      if (schema) by("schema").value = JSON.stringify(schema, null, 1);
    };
    const chips = Object.entries(examples).map(([name, example]) => {
      const chip = make("button", { type: "button", title: example.prompt }, name);
      chip.addEventListener("click", () => {
        write(example);
        by("prompt").focus();
        examine();
      });
      return chip;
    });
    by("examples").replaceChildren(...chips);
    // What the user has typed stays.
    const typed = by("prompt").value;
    const offered = [...Object.values(EXAMPLES), ...Object.values(plans.EXAMPLES)].some(({ prompt }) => prompt === typed);
    if (!typed || (asksForPlan() && !by("schema").value)) write({ ...first, prompt: typed && !offered ? typed : first.prompt });
  }

  async function meetModel() {
    const engine = by("engine");
    try {
      model = await api.model(by("key").value);
      engine.className = "engine found";
      engine.textContent = model;
      by("problem").hidden = true;
    } catch (error) {
      engine.className = "engine lost";
      engine.textContent = error.needsKey ? "needs a key" : "not reached";
      complain(error);
    }
    examine();
  }

  by("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    answer();
  });
  by("stop").addEventListener("click", () => running?.stopper.abort());
  by("compare").addEventListener("click", () => {
    if (!running && answered) perform(new Baseline(answered.prompt, answered.schema));
  });
  by("key").addEventListener("change", meetModel);
  by("schema").addEventListener("input", examine);
  by("tokens").addEventListener("change", examine);
  for (const kind of by("ask").elements.kind) kind.addEventListener("change", () => choose(kind.value));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running) running.stopper.abort();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) answer();
  });

  choose(by("ask").elements.kind.value);
  meetModel();
})();
