"use strict";

/* The page: asks, shows what comes, compares, shares. Text of the model is only ever put in as text. */
(() => {
  const { make, seconds, timeline, inSequence, showNumbers } = pasta;
  const { Lane, Prose, Clock, promiseTag, syncTag } = views;
  const by = (id) => document.getElementById(id);
  const DRAW_EVERY = 80; // milliseconds
  const NARROW = matchMedia("(max-width: 60rem)");

  const EXAMPLES = {
    Compare: "Compare tea and coffee: taste, caffeine, and how each is made.",
    Plan: "Plan a weekend in Lisbon for two: food, sights and evenings.",
    Explain: "Explain photosynthesis to a child, to a student and to a chemist.",
  };

  let model = null;
  let running = null; // the run under way
  let answered = null; // the last answer that is whole: { generation, rounds, prompt }

  // One run -----------------------------------------------------------------------------------------------

  /** One answer, from the request to the last event. */
  class Run {
    constructor(prompt) {
      this.prompt = prompt;
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

    draw({ now = false } = {}) {
      if (!now && performance.now() - this.drawn < DRAW_EVERY) return;
      this.drawn = performance.now();
      for (const lane of this.lanes) lane?.scroll();
      this.picture();
    }

    /** It ended early: what is there stays. */
    broken() {
      this.clock.stop();
      for (const lane of this.lanes) if (lane && lane.card.dataset.state !== "done") lane.state("stopped", "stopped");
      this.draw({ now: true });
    }
  }

  /** The answer, decoded in parallel. */
  class Answer extends Run {
    options = { baseline: false };

    constructor(prompt) {
      super(prompt);
      by("lanes").replaceChildren();
      by("numbers").replaceChildren();
      by("timeline").replaceChildren();
      by("times-key").hidden = false;
      this.prose = new Prose(by("answer"));
      this.clock.promise(0, "", 0);
      this.lanes.push(new Lane(by("lanes"), 0, "main", null));
      this.lanes[0].state("queued", "waits for the server");
    }

    show(delta) {
      this.prose.show(delta);
    }

    picture() {
      const whole = this.generation;
      if (whole || this.clock.timeline.length) timeline(by("timeline"), whole ?? this.clock.answer, { rounds: this.clock.joins });
    }

    finish() {
      const { elapsed } = this.generation;
      this.clock.join(elapsed);
      this.prose.settle(this.generation.text);
      showNumbers(by("numbers"), this.generation, null);
      this.draw({ now: true });
      answered = { generation: this.generation, rounds: this.clock.joins, prompt: this.prompt };
      const threads = this.generation.threads.length;
      tell(`Done in ${seconds(elapsed)}, with ${threads === 1 ? "one thread: nothing here was independent" : `${threads} threads`}.`);
    }

    tellHowMany() {
      const count = this.clock.running.size;
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
        this.lanes[thread].add(delta);
      },
      "thread.replaced"({ thread, text }) {
        if (thread) this.prose.replaced(thread, text);
        this.lanes[thread].replaced(text);
      },
      "thread.done"({ thread, record }) {
        this.clock.done(record);
        this.lanes[thread].done(record);
        if (!thread) this.clock.wait(record.ended);
        this.tellHowMany();
      },
      "thread.failed"({ thread, error, action }) {
        const words = { retry: "tries again", fail: "failed" };
        this.lanes[thread].state(action === "fail" ? "failed" : "queued", words[action]);
        this.lanes[thread].card.title = error.message;
      },
      "sync.waiting"({ time }) {
        this.clock.wait(time);
        this.tellHowMany();
        this.sync = this.lanes[0].mark(syncTag());
        this.lanes[0].state("waits", "waits for its threads");
      },
      "sync.joined"({ time }) {
        this.clock.join(time);
        this.clock.start(0, time);
        this.sync?.classList.remove("waiting");
        this.sync?.replaceChildren("sync · joined");
        this.lanes[0].state("decodes");
        this.tellHowMany();
      },
    };
  }

  /** The same prompt answered without any tag, beside the answer. */
  class Baseline extends Run {
    options = { baseline: true };

    constructor(prompt) {
      super(prompt);
      by("lanes").querySelector('[data-thread="baseline"]')?.remove();
      this.clock.promise(0, "", 0);
      this.lanes.push(new Lane(by("lanes"), "baseline", "baseline", answered.generation.text_tokens));
      this.lanes[0].state("queued", "waits for the server");
      this.lanes[0].card.scrollIntoView({ block: "nearest" });
    }

    show() {}

    picture() {
      const { generation, rounds } = answered;
      const baseline = this.generation ?? (this.clock.timeline.length ? this.clock.answer : null);
      timeline(by("timeline"), generation, { rounds, baseline });
    }

    finish() {
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
        this.lanes[0].done(record);
      },
    };
  }

  // The page ----------------------------------------------------------------------------------------------

  const tell = (words) => {
    by("state").textContent = words;
  };

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
    const isAnswer = run instanceof Answer;
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
    answered = null;
    perform(new Answer(prompt));
    if (NARROW.matches) by("state").scrollIntoView({ block: "start" });
  }

  async function share() {
    const link = new URL(location.href);
    link.hash = `prompt=${encodeURIComponent(by("prompt").value)}`;
    history.replaceState(null, "", link);
    try {
      await navigator.clipboard.writeText(link.href);
      tell("The link is copied. It opens this page with this prompt.");
    } catch {
      tell("The address of this page has the prompt now; copy it from there.");
    }
  }

  /** The prompt of a link stands behind the #, which browsers do not send to servers. */
  function readLink() {
    const found = /^#prompt=(.*)$/s.exec(location.hash);
    if (!found) return false;
    try {
      by("prompt").value = decodeURIComponent(found[1]);
    } catch {
      complain(new api.Trouble("The prompt in this link cannot be read."));
    }
    return true;
  }

  function theme(choice) {
    const next = { auto: "dark", dark: "light", light: "auto" };
    if (choice === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    const names = { auto: "as the system has them", dark: "dark", light: "light" };
    by("theme").setAttribute("aria-label", `Colours: ${names[choice]}`);
    by("theme").querySelector("span").textContent = { auto: "Auto", dark: "Dark", light: "Light" }[choice];
    by("theme").dataset.next = next[choice];
  }

  function remember(choice) {
    try {
      localStorage.setItem("pasta-colours", choice);
    } catch {
      // a browser that keeps nothing
    }
    theme(choice);
  }

  function remembered() {
    try {
      const choice = localStorage.getItem("pasta-colours");
      return ["dark", "light"].includes(choice) ? choice : "auto";
    } catch {
      return "auto";
    }
  }

  function offerExamples() {
    const chips = Object.entries(EXAMPLES).map(([name, prompt]) => {
      const chip = make("button", { type: "button", title: prompt }, name);
      chip.addEventListener("click", () => {
        by("prompt").value = prompt;
        by("prompt").focus();
      });
      return chip;
    });
    by("examples").replaceChildren(...chips);
    if (!by("prompt").value) by("prompt").value = Object.values(EXAMPLES)[0];
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
    offerExamples();
  }

  by("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    answer();
  });
  by("stop").addEventListener("click", () => running?.stopper.abort());
  by("compare").addEventListener("click", () => {
    if (!running && answered) perform(new Baseline(answered.prompt));
  });
  by("share").addEventListener("click", share);
  by("theme").addEventListener("click", () => remember(by("theme").dataset.next));
  by("key").addEventListener("change", meetModel);
  addEventListener("hashchange", readLink);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running) running.stopper.abort();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) answer();
  });

  theme(remembered());
  readLink();
  meetModel();
})();
