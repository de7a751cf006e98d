// The inspector: what the selected step got and gave, and what can be done from it.

/** The answer that was not given: yes for no, no for yes; anything else to be changed by hand. Text in, text out. */
function otherAnswer(text) {
  const yes = /^(\s*\{[^{}]*"approved"\s*:\s*|\s*)(true|false)\b/;
  return text.replace(yes, (_, before, word) => before + (word === "true" ? "false" : "true"));
}

const PARTS = [["result", "Result"], ["args", "Arguments"], ["files", "Files"], ["usage", "Usage"], ["entry", "Entry"]];
const NO_STEP = new Set(["suspend", "resume", "intent", "note", "error", "complete", "cancel", "start", "other"]);

class Inspector {
  constructor(ctx, { onLine, onTouch, onMode, askLine }) {
    Object.assign(this, { ctx, onLine, onTouch, onMode, onAsk: askLine, row: null, part: "result", cache: new Map(), asked: new Map(), mode: null, drafts: new Map() });
    this.tabs = PARTS.map(([part, name]) => {
      const tab = button(name, () => this.choosePart(part), { kind: "k-tab", role: "tab", id: uid("k-tab") });
      tab.dataset.part = part;
      return tab;
    });
    const tablist = el("div.k-tabs", { role: "tablist", "aria-label": "parts of the step" }, this.tabs);
    tablist.addEventListener("keydown", (e) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (!by) return;
      e.preventDefault();
      const tabs = this.tabs.filter((t) => !t.hidden);
      const next = tabs[(tabs.findIndex((t) => t.dataset.part === this.part) + by + tabs.length) % tabs.length];
      this.choosePart(next.dataset.part);
      next.focus();
    });
    this.again = button("Run again from here", () => this.openEditor("fork"), { kind: "k-btn.k-small", "aria-expanded": "false" });
    this.change = button("Change its result…", () => this.openEditor("override"), { kind: "k-btn.k-small", "aria-expanded": "false" });
    this.other = button("Also try another answer…", () => this.openEditor("other"), { kind: "k-btn.k-small", "aria-expanded": "false" });
    for (const [node, verb] of [[this.again, "fork"], [this.change, "override"], [this.other, "other"]]) {
      for (const type of ["focus", "mouseenter"]) node.addEventListener(type, () => this.hint(verb));
      for (const type of ["blur", "mouseleave"]) node.addEventListener(type, () => this.hint(this.mode));
    }
    this.why = el("span.k-dim.k-why");
    this.actions = el("span.k-actions", null, this.why, this.other, this.again, this.change);
    this.facts = el("span.k-factline");
    this.view = new ValueView({ onMore: () => this.ask("more"), label: "value of the step" });
    this.editor = this.makeEditor();
    this.node = el("div.k-inspector", null, el("div.k-insphead", null, tablist, this.actions),
      el("div.k-kv", null, this.facts, this.view.bar), this.editor, this.view.body);
    this.view.body.id = uid("k-value");
    for (const tab of this.tabs) tab.setAttribute("aria-controls", this.view.body.id);
    this.drawTabs();
  }

  makeEditor() {
    this.says = el("div.k-says");
    this.area = el("textarea.k-in.k-area", { "aria-label": "the new result", spellcheck: "false", rows: "6" });
    this.areaHint = el("span.k-dim");
    this.cannot = el("div.k-dim");
    this.label = el("input.k-in", { type: "text", "aria-label": "label of the new run", placeholder: "label (optional)" });
    this.go = button("Fork and run", () => this.fork(true), { kind: "k-btn.k-strong" });
    this.only = button("Only fork", () => this.fork(false), { kind: "k-btn.k-strong" });
    this.shut = button("close", () => this.openEditor(null), { kind: "k-link" });
    this.controls = el("div.k-formrow", null, this.go, this.only, this.label, this.areaHint, this.shut);
    this.act = new Act(this.ctx, this.controls, { keep: true });
    this.area.addEventListener("input", () => { if (this.row) this.drafts.set(this.draftKey(), this.area.value); this.askLine(true); });
    this.label.addEventListener("input", () => this.askLine(true));
    for (const [node, start] of [[this.go, true], [this.only, false]]) for (const type of ["focus", "mouseenter"]) node.addEventListener(type, () => this.askLine(start));
    return el("div.k-editor", { hidden: true, role: "group", "aria-label": "fork" }, this.says, this.area, this.controls, this.act.status, this.cannot);
  }

  destroy() { this.view.free(); this.act.destroy(); }

  /** Row `row` is selected. A row that changed (it ended) loses what was fetched of it. */
  select(row, info) {
    const same = this.row && row && this.row.o === row.o;
    const changed = same && (this.row.t1 !== row.t1 || this.row.p !== row.p || this.row.x !== row.x);
    this.info = info;
    if (changed) for (const [part] of PARTS) { this.cache.delete(`${row.o}/${part}`); this.asked.delete(`${row.o}/${part}`); }
    this.row = row;
    if (!same && this.mode && this.act.idle) this.openEditor(null);
    this.drawHead();
    if (same && !changed) return;
    if (!row) { this.view.say(""); return; }
    this.showPart(changed);
  }

  drawHead() {
    const { row, info } = this;
    if (!row) { put(this.facts, "no step selected"); show(this.actions, false); return; }
    const key = JSON.stringify([row, info.started]);
    refill(this.facts, key, () => {
      const parts = [row.kind, el("span.k-mono", null, row.id)];
      if (known(row.t0) && info.started) parts.push(timeNode(new Date(Date.parse(info.started) + row.t0).toISOString()));
      if (known(row.d)) parts.push(duration(row.d));
      if (known(row.c)) parts.push(money(row.c));
      if (row.o < info.copied) parts.push("copied");
      if (hasFlag(row, "v")) parts.push("✎ edited");
      if (actsNow(row)) parts.push(info.live ? "▶ acts now" : "not finished");
      parts.push(`entry ${row.o}`);
      return parts.flatMap((p, i) => (i ? [" · ", p] : [p]));
    });
    const step = !NO_STEP.has(row.kind), answered = row.kind === "suspend" && hasFlag(row, "a");
    const reason = info.can && info.can.fork !== true && info.can.fork ? info.can.fork : "";
    show(this.actions, step || answered || hasFlag(row, "?"));
    show(this.again, !reason);
    show(this.change, !reason && step);
    show(this.other, !reason && answered);
    put(this.why, reason ? `no fork: ${reason}` : "");
    tip(this.why, reason);
    const name = row.id.length > 18 ? "this step" : row.id;
    put(this.again, answered ? "Ask again" : `Run again from ${name}`);
    tip(this.again, `a new run that keeps what is before ${row.id} and ${answered ? "asks" : "runs"} it again`);
    for (const tab of this.tabs) {
      const part = tab.dataset.part, named = row.kind === "suspend" && { result: "Answer", args: "Context" }[part];
      put(tab, named || PARTS.find((p) => p[0] === part)[1]);
      if (part === "files") show(tab, !!info.files);
    }
  }

  drawTabs() {
    for (const tab of this.tabs) {
      const on = tab.dataset.part === this.part;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
  }

  choosePart(part) {
    this.part = part;
    this.onTouch();
    this.drawTabs();
    if (this.row) this.showPart(false);
    this.hint(this.mode);
  }

  showPart(keep) {
    const key = `${this.row.o}/${this.part}`, value = this.cache.get(key);
    if (value) { this.view.show(value); return; }
    if (!keep || !this.view.value) {
      this.view.show(null);
      clearTimeout(this.slow);
      this.slow = setTimeout(() => this.stillNothing(key), 250);
    }
    if (!this.asked.has(key)) this.ask("value");
  }

  stillNothing(key) {
    if (!this.row || key !== `${this.row.o}/${this.part}` || this.cache.has(key)) return;
    const since = Date.now() - (this.asked.get(key) || Date.now());
    this.view.say(this.working === key ? "comparing the files …" : !this.asked.get(key) ? "no kernel: run this cell again to read the values" : since < 1200 ? "reading …" : "the kernel is busy; the value comes when its cell ends");
    this.slow = setTimeout(() => this.stillNothing(key), 1000);
  }

  ask(type, part = this.part) {
    const key = `${this.row.o}/${part}`;
    this.asked.set(key, this.ctx.send({ type, offset: this.row.o, part }) ? Date.now() : 0);
    if (!this.asked.get(key)) { this.asked.delete(key); this.stillNothing(key); }
  }

  /** An answer to `value` or `more`. */
  hear(msg) {
    const key = `${msg.offset}/${msg.part}`, had = this.cache.get(key);
    if (msg.type === "working") { this.working = key; return; }
    if (msg.type === "file") { this.hearFile(had, msg); return; }
    if (msg.files) { msg.ask = (n) => this.ctx.send({ type: "file", offset: msg.offset, part: "files", n }); msg.onLine = (line) => this.onLine(line, this.line("value")); }
    if (had && !had.truncated && msg.truncated && had.bytes === msg.bytes) return; // another view asked for the short form
    this.cache.delete(key);
    this.cache.set(key, msg);
    this.asked.delete(key);
    while (this.cache.size > 60) this.cache.delete(this.cache.keys().next().value);
    if (!this.row || msg.offset !== this.row.o) return;
    if (msg.part === this.part) { clearTimeout(this.slow); this.view.show(msg); }
    if (msg.part === "files") this.hint(this.mode);
    if (msg.part === "result") { this.drawHead(); if (this.mode) this.fillEditor(); this.hint(this.mode); }
  }

  /** The text of one file, where it was asked for. */
  hearFile(value, msg) {
    if (!value || !value.files || !value.files[msg.n]) return;
    const { text, bytes, shown, truncated, lines, why } = msg;
    Object.assign(value.files[msg.n], { text, bytes, shown, truncated, lines, why });
    if (value.fill) value.fill(msg.n);
  }

  line(verb) {
    const files = verb === "value" && this.part === "files" && this.row && this.cache.get(`${this.row.o}/files`);
    if (files && files.lines) return files.lines.files;
    const value = this.row && this.cache.get(`${this.row.o}/result`);
    return value && value.lines ? value.lines[verb] || "" : "";
  }

  hint(verb) {
    if (verb && verb === this.mode && this.filled === this.row.o) { this.askLine(true); return; }
    this.onLine(verb ? this.line(verb) : null, this.line("value"));
  }

  openEditor(mode, stay) {
    if (mode && !this.row) return;
    if (stay && this.mode === mode) return;
    if (this.act.waiting) return;
    this.act.reset(false);
    this.onTouch();
    const back = this.editor.contains(document.activeElement) ? { override: this.change, other: this.other }[this.mode] || this.again : null;
    this.mode = mode && mode === this.mode ? null : mode;
    show(this.editor, !!this.mode);
    this.node.classList.toggle("k-overriding", this.mode === "override" || this.mode === "other");
    this.other.setAttribute("aria-expanded", String(this.mode === "other"));
    this.onMode(!!this.mode);
    this.again.setAttribute("aria-expanded", String(this.mode === "fork"));
    this.change.setAttribute("aria-expanded", String(this.mode === "override"));
    if (!this.mode) { if (back) back.focus({ preventScroll: true }); this.hint(null); return; }
    this.filled = null;
    const key = `${this.row.o}/result`;
    if (!this.cache.has(key) && !this.asked.has(key)) this.ask("value", "result");
    this.fillEditor();
    this.hint(this.mode);
    (this.mode !== "fork" ? this.area : this.go.disabled ? this.only : this.go).focus({ preventScroll: true });
  }

  fillEditor() {
    const value = this.cache.get(`${this.row.o}/result`), edit = this.mode !== "fork";
    const says = value && (this.mode === "override" ? value.override_text : this.mode === "other" ? value.other_text : value.fork_text);
    this.area.setAttribute("aria-label", this.mode === "other" ? "the other answer as JSON" : "the new result");
    refill(this.says, `${says}/${edit}/${this.row.id}`, () => ticked(says || (edit ? `a new run that keeps what came before, puts your value in place of the result of ${this.row.id}, and goes on from there` : `a new run that keeps what came before ${this.row.id} and runs it again live`)));
    show(this.area, edit);
    const cannot = this.info.can && typeof this.info.can.start_fork === "string" ? this.info.can.start_fork : "";
    this.go.disabled = !!cannot;
    put(this.cannot, cannot ? `Fork and run: ${cannot}` : "");
    if (!edit) { put(this.areaHint, ""); return; }
    const json = !value || value.format === "json" || value.format === "none" || value.format === "image" || hasFlag(this.row, "e"); // in place of an error: JSON
    put(this.areaHint, !value ? "reading the recorded result …" : value.truncated ? `loading all ${byteCount(value.bytes)} …` : json ? "JSON" : "text");
    if (!value || this.filled === this.row.o) return;
    if (value.truncated) { if (!this.whole) { this.whole = true; this.ask("more", "result"); } return; }
    this.whole = false;
    this.filled = this.row.o;
    const draft = this.drafts.get(this.draftKey());
    if (draft !== undefined) this.area.value = draft;
    else if (this.mode === "other") this.area.value = otherAnswer(value.text || "");
    else if (this.area.value !== (value.text || "")) this.area.value = value.format === "none" || value.format === "image" || hasFlag(this.row, "e") ? "" : value.text || "";
    this.format = json ? "json" : "text";
    this.askLine(true);
  }

  draftKey() { return `${this.row.o}/${this.mode}`; }

  message(start) {
    const edit = this.mode !== "fork";
    return { verb: this.mode === "other" ? "other" : "fork", offset: this.row.o, override_text: edit ? this.area.value : null, override_format: edit ? this.format : null, start, label: this.label.value.trim() || null };
  }

  /** The code for the fork as it stands in the editor; the kernel writes it. */
  askLine(start) { if (this.row && this.mode && (this.mode === "fork" || this.filled === this.row.o)) this.onAsk(this.message(start)); }

  fork(start) {
    const edit = this.mode !== "fork";
    if (edit && this.filled !== this.row.o) { put(this.areaHint, "the recorded result has not arrived yet"); return; }
    this.act.run(this.message(start));
  }
}
