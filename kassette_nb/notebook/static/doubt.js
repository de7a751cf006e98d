// A tool that may or may not have acted: amber, what it was called with, and the three answers.

class DoubtCard {
  constructor(ctx, d, hooks) {
    Object.assign(this, { ctx, q: d, hooks, born: performance.now(), mode: null });
    this.title = el("span.k-qtitle");
    this.since = el("span.k-qsince");
    this.text = el("div.k-prompt");
    this.args = el("div.k-ctx.k-value", { tabindex: "0", role: "region", "aria-label": "arguments of the call in doubt" });
    this.by = el("input.k-in.k-by", { id: uid("k-by"), type: "text", value: hooks.by(), size: "10", autocomplete: "off", spellcheck: "false" });
    this.note = el("input.k-in.k-note", { type: "text", placeholder: "note for the record", "aria-label": "note for the record", autocomplete: "off" });
    this.by.addEventListener("input", () => hooks.by(this.by.value));
    const choices = [["record", "It happened…"], ["retry", "Retry"], ["fail", "Fail…"]];
    this.buttons = choices.map(([action, text]) => this.choice(action, text));
    this.why = el("span.k-dim");
    this.row = el("div.k-formrow", null, this.buttons, el("label.k-dim", { for: this.by.id }, "by"), this.by, this.note, this.why);
    this.area = el("textarea.k-in.k-area", { rows: "3", spellcheck: "false" });
    this.area.addEventListener("input", () => this.askLine());
    this.says = el("span.k-dim");
    this.go = button("", () => this.send(), { kind: "k-btn.k-strong" });
    this.more = el("div.k-doubtmore", { hidden: true }, this.says, this.area, el("div.k-formrow", null, this.go, button("back", () => this.open(null), { kind: "k-link" })));
    this.controls = el("div.k-doubtcontrols", null, this.row, this.more);
    this.act = new Act(ctx, this.controls, { answer: true, onLine: hooks.onLine });
    this.node = el("div.k-card.k-doubt", { role: "group" }, el("div.k-qhead", null, this.title, this.since), this.text, el("div.k-ctxbox", null, this.args), this.controls, this.act.status);
  }

  choice(action, text) {
    const node = button(text, () => {
      if (performance.now() - this.born < SETTLE_MS) return;
      if (action === "retry") { this.mode = action; this.send(); } else this.open(action);
    }, { kind: "k-btn.k-strong.k-answer" });
    for (const type of ["focus", "mouseenter"]) node.addEventListener(type, () => this.hooks.onLine(this.q.lines && this.q.lines[action]));
    for (const type of ["blur", "mouseleave"]) node.addEventListener(type, () => this.hooks.onLine(null));
    return node;
  }

  open(action) {
    this.mode = action;
    show(this.more, !!action);
    if (!action) { this.buttons[0].focus({ preventScroll: true }); return; }
    const record = action === "record";
    put(this.says, record ? "What the tool returned, as JSON; the run goes on with it. Empty means null." : "How it failed; the workflow sees it as the tool's error.");
    this.area.setAttribute("aria-label", record ? "result of the tool as JSON" : "error of the tool");
    this.area.value = "";
    put(this.go, record ? "Record this result" : "Record this failure");
    this.area.focus({ preventScroll: true });
    this.askLine();
  }

  message() { return { verb: "settle", action: this.mode, id: this.q.id, attempt: this.q.attempt, value_text: this.mode === "retry" ? null : this.area.value, by: this.by.value.trim() || null, note: this.note.value }; }
  askLine() { this.hooks.askLine(this.message()); }
  send() { this.act.run(this.message()); }

  update(d) {
    this.q = d;
    put(this.title, `? in doubt · ${oneLine(d.name)}`);
    this.node.setAttribute("aria-label", visible(`tool in doubt ${d.id}`));
    refill(this.since, d.since, () => ["started ", timeNode(d.since)]);
    refill(this.text, JSON.stringify([d.id, d.attempt, d.key]), () => [el("span.k-mono", null, oneLine(d.id)), " was started and no result is recorded: it may have acted or not.",
      el("span.k-dim.k-key-line", null, `${known(d.attempt) ? ` attempt ${d.attempt}` : ""}${d.key ? ` · key ${d.key}` : " · no idempotency key"}`)]);
    if (d.args && this.shown !== d.args.text + d.args.note) {
      this.shown = d.args.text + d.args.note;
      this.args.replaceChildren(valueBody(d.args));
    }
    const can = this.hooks.can(), reason = can === true || can === undefined ? "" : can || "";
    for (const node of [...this.buttons, this.by, this.note, this.row.querySelector("label")]) show(node, !reason);
    put(this.why, reason ? `no answer from here: ${reason}` : "");
  }

  appear() {
    this.born = performance.now();
    this.node.classList.add("k-settling");
    setTimeout(() => this.node.classList.remove("k-settling"), SETTLE_MS);
  }

  destroy() { this.act.destroy(); }
}
