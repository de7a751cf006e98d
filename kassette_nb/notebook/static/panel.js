// The panel of one run: head, question, timeline, steps and inspector, code line. Fixed height; the parts scroll.

class Panel {
  constructor(ctx, summary, { closable = false } = {}) {
    Object.assign(this, { ctx, rows: [], selected: -1, pinned: false, byText: null, arrived: Date.now(), codeHint: null });
    this.head = new PanelHead(ctx, { closable, askLine: (msg) => this.questions.hooks.askLine(msg), onLine: (line) => this.codeLine(line), onStale: (offset) => { this.goTo(offset); this.inspector.openEditor("fork", true); } });
    const touch = () => { this.pinned = true; };
    this.questions = new Questions(ctx, {
      by: (text) => { if (text !== undefined) this.byText = text; return this.byText === null ? this.summary.by || "" : this.byText; },
      can: () => (this.summary.can || {}).answer,
      offsetOf: (q) => this.offsetOf(q),
      onLine: (line) => { this.lineAsked = null; this.codeLine(line); },
      askLine: debounce((msg) => { this.lineAsked = uid("line"); ctx.send({ type: "line", n: this.lineAsked, ...msg }); }, 120),
      onOffset: (offset) => this.goTo(offset),
      onForm: (on) => this.node && this.node.classList.toggle("k-withform", on),
      onShow: (q) => { if (q) this.goTo(this.offsetOf(q)); },
    });
    this.timeline = new Timeline({ rootOf: () => ctx.root, onSelect: (i) => { touch(); this.list.choose(i); } });
    this.list = new StepList({
      onSelect: (i, user) => { if (user) touch(); this.select(i); },
      onSearch: (text) => ctx.send({ type: "search", text }),
      onEnter: () => this.inspector.view.body.focus(),
    });
    this.printed = el("pre", { tabindex: "0" });
    this.printedBox = el("details.k-printed", { hidden: true }, this.printedHead = el("summary"), this.printed);
    this.inspector = new Inspector(ctx, { onTouch: touch, onMode: (on) => this.node.classList.toggle("k-editing", on), askLine: (msg) => this.questions.hooks.askLine(msg), onLine: (line, base) => { this.baseLine = base; this.codeLine(line); } });
    this.code = el("code.k-code");
    this.asOf = el("span.k-dim.k-asof");
    this.foot = el("div.k-foot", null, this.code, copyButton(() => this.code.textContent, () => this.code), this.asOf);
    this.node = el("div.k-panel", { role: "group" }, this.head.node, this.questions.node, this.timeline.node,
      el("div.k-body", null, this.list.node, this.inspector.node), this.printedBox, this.foot);
    this.list.box.addEventListener("wheel", touch, { passive: true });
    this.timer = setInterval(() => this.tick(), 1000);
    // The newest rows come with the summary, so that the panel stands at once; the rest follow.
    this.rows = summary.tail || [];
    this.whole = this.rows.length === summary.total_rows;
    this.update(summary);
    if (this.rows.length) this.draw(); // not in the next frame only: the first picture has rows
  }

  static identity(s) { return `panel/${s.run_id}`; }

  update(summary) {
    this.summary = summary;
    this.arrived = Date.now();
    if (!summary.going_on) this.beat = 0;
    this.node.setAttribute("aria-label", visible(`run ${summary.label || summary.run_id}, ${summary.state}`));
    this.head.update(summary, (offset) => this.goTo(offset));
    this.questions.update(summary);
    this.later();
    this.tick();
    this.codeLine(this.codeHint);
    this.said();
  }

  setRows(msg) {
    if (msg.from > (this.whole ? this.rows.length : 0)) { this.ctx.send({ type: "hello" }); return; }
    this.rows = this.rows.slice(0, msg.from).concat(msg.rows);
    this.whole = true;
    this.later();
  }

  /** Summary and rows arrive one after the other: draw once. */
  later() { if (!this.frame) this.frame = soon(() => { this.frame = 0; this.draw(); }); }

  info() {
    const s = this.summary, started = s.started ? Date.parse(s.started) : null;
    const now = started !== null && s.as_of ? Date.parse(s.as_of) - started : 0;
    const words = { start: "start", resume: "resumed", fork: "fork", cancel: "cancel" };
    return {
      started, now, live: s.state === "running", lanes: s.lanes || [], copied: s.copied || 0, copiedText: s.copied_text, can: s.can,
      sessions: (s.sessions || []).map((x) => ({ ...x, ms: x.at && started !== null ? Date.parse(x.at) - started : 0 })),
      marks: (s.sessions || []).filter((x, i) => x.at && started !== null && (i > 0 || s.copied) && !(x.offset < (s.copied || 0)))
        .map((x) => ({ ms: Date.parse(x.at) - started, offset: x.offset, text: `${words[x.by] || x.by || "session"} ${clock(Date.parse(x.at))}` })),
    };
  }

  draw() {
    const info = this.info(), keep = this.rows[this.selected] ? this.rows[this.selected].o : null;
    const selectedOffset = this.wanted !== undefined ? this.wanted : this.offset !== undefined ? this.offset : keep;
    this.list.setData(this.rows, { ...info, none: ["damaged", "missing"].includes(this.summary.state) ? "no step can be read" : "no steps yet" });
    show(this.timeline.node, this.rows.length > 0);
    this.timeline.setData(this.whole ? this.rows : [], { ...info, sessions: info.marks });
    let i = this.pinned && known(selectedOffset) ? this.indexOf(selectedOffset) : this.whatMatters();
    if (i < 0) i = this.whatMatters();
    if (this.wanted !== undefined && this.indexOf(this.wanted) >= 0) this.wanted = undefined;
    if (i !== this.list.selected || !this.pinned) {
      const moved = this.rows[i] && this.rows[i].o !== this.offset;
      this.list.selected = i;
      if (moved || !this.pinned) this.list.bring(i);
      this.list.draw();
    }
    this.select(i);
  }

  /** The question, else the failing step, else the newest. */
  whatMatters() {
    const rows = this.rows, s = this.summary, q = this.questions.question;
    if (q) { const i = this.indexOf(this.offsetOf(q)); if (i >= 0) return i; }
    for (let i = rows.length - 1; i >= 0; i--) if (hasFlag(rows[i], "?")) return i;
    if (s.state === "failed") {
      const last = s.ending && s.ending.step ? rows.findIndex((r) => r.id === s.ending.step) : -1;
      if (last >= 0) return last;
      for (let i = rows.length - 1; i >= 0; i--) if (hasFlag(rows[i], "e") && rows[i].kind !== "error") return i;
      for (let i = rows.length - 1; i >= 0; i--) if (rows[i].kind === "error") return i;
    }
    return rows.length - 1;
  }

  offsetOf(q) {
    if (known(q.offset)) return q.offset;
    for (let i = this.rows.length - 1; i >= 0; i--) if (visible(this.rows[i].id) === visible(q.id) && this.rows[i].kind === "suspend") return this.rows[i].o;
    return null;
  }

  indexOf(offset) {
    if (!known(offset)) return -1;
    let lo = 0, hi = this.rows.length - 1;
    while (lo <= hi) { // rows stand in the order of their offsets, as a rule
      const mid = (lo + hi) >> 1, o = this.rows[mid].o;
      if (o === offset) return mid;
      if (o < offset) lo = mid + 1; else hi = mid - 1;
    }
    return this.rows.findIndex((r) => r.o === offset);
  }

  goTo(offset) {
    if (!known(offset)) return;
    this.pinned = true;
    let i = this.indexOf(offset);
    if (i < 0) { // an entry without a row of its own (a recorded answer): the step before it
      i = this.rows.findIndex((r) => r.o > offset) - 1;
      if (i < 0) i = this.rows.length - 1;
    }
    if (!this.list.inFilter(i) && this.list.text) { this.list.filter.value = this.list.text = ""; this.list.build(); }
    this.list.choose(i);
  }

  select(i) {
    this.selected = i;
    this.offset = this.rows[i] ? this.rows[i].o : undefined;
    this.timeline.select(i, true);
    const s = this.summary;
    this.inspector.select(this.rows[i] || null, { started: s.started, copied: s.copied || 0, can: s.can, files: s.workspace, live: s.state === "running" });
    this.inspector.hint(this.inspector.mode);
  }

  /** The code for the focused action; else for the selected step; else for the run. */
  codeLine(line) {
    this.codeHint = line || null;
    const text = line || this.baseLine || this.summary.code_line || "";
    put(this.code, text);
    tip(this.code, text);
  }

  tick() {
    this.head.tick(this.summary, this.rows, this.arrived, this.beat);
    const passed = Date.now() - this.arrived;
    if (this.summary.state === "running" || this.summary.state === "suspended") { this.list.tick(passed); this.timeline.tick(passed); }
  }

  /** What the agent printed while it ran in the background. */
  setPrinted(msg) {
    const text = ((msg.whole ? "" : this.printed.textContent) + visible(msg.text)).slice(-40000);
    const stays = this.printed.scrollTop + this.printed.clientHeight < this.printed.scrollHeight - 4;
    this.printed.textContent = text;
    put(this.printedHead, `printed by the run · ${plural(text.replace(/\n$/, "").split("\n").length, "line")}`);
    if (this.printedBox.hidden) { this.printedBox.open = true; show(this.printedBox, true); }
    if (!stays) this.printed.scrollTop = this.printed.scrollHeight;
  }

  said() {
    const s = this.summary, words = this.ctx.offline();
    this.asOf.classList.toggle("k-warn", !!words);
    refill(this.asOf, JSON.stringify([words, s.as_of]), () => (words ? [`as of `, timeNode(s.as_of), ` · ${words}`] : s.as_of ? ["as of ", timeNode(s.as_of)] : []));
  }

  hear(msg) {
    if (msg.type === "rows") this.setRows(msg);
    else if (msg.type === "found") this.list.setFound(msg);
    else if (msg.type === "beat") this.beat = Date.now();
    else if (msg.type === "printed") this.setPrinted(msg);
    else if (msg.type === "line") { if (msg.n === this.lineAsked && msg.text) this.codeLine(msg.text); }
    else if (["value", "more", "file", "working"].includes(msg.type)) {
      if (msg.part === "context") this.questions.hear(msg);
      else this.inspector.hear(msg);
    }
  }

  redraw() { this.timeline.draw(); }

  destroy() {
    clearInterval(this.timer);
    for (const part of [this.questions, this.timeline, this.list, this.inspector]) part.destroy();
    this.head.act.destroy();
  }
}
