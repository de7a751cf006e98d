// The questions of a run: one card each, kept as it is (with what was typed) while the run lives on around it.

const SETTLE_MS = 600; // a card that just came under the pointer takes no click

class QuestionCard {
  constructor(ctx, q, hooks) {
    Object.assign(this, { ctx, q, hooks, born: performance.now() });
    const approval = q.form.kind === "approval" || q.form.kind === "boolean";
    this.title = el("span.k-qtitle");
    this.since = el("span.k-qsince");
    this.prompt = el("div.k-prompt", { tabindex: "-1" });
    this.lines = el("span.k-dim");
    this.more = button("", () => { put(this.more, "loading …"); ctx.send({ type: "more", offset: hooks.offsetOf(this.q), part: "context" }); }, { kind: "k-link", hidden: true });
    this.context = el("div.k-ctx.k-value", { tabindex: "0", role: "region", "aria-label": "context of the question" });
    this.contextFoot = el("div.k-ctxfoot", null, this.lines, this.more);
    this.contextBox = el("div.k-ctxbox", null, this.context, this.contextFoot);
    this.context.addEventListener("scroll", () => this.sayLines());
    this.observer = new ResizeObserver(() => this.sayLines());
    this.observer.observe(this.context);

    this.by = el("input.k-in.k-by", { id: uid("k-by"), type: "text", value: hooks.by(), size: "10", autocomplete: "off", spellcheck: "false" });
    const words = q.form.kind === "approval" ? "note for the agent" : "note for the record"; // an answer by a schema has no room for it
    this.note = el("input.k-in.k-note", { id: uid("k-note"), type: "text", placeholder: words, "aria-label": words, autocomplete: "off" });
    this.by.addEventListener("input", () => { hooks.by(this.by.value); this.askLine(); });
    this.note.addEventListener("input", () => this.askLine());
    this.buttons = approval
      ? [this.answerButton("Approve", () => this.send("approve"), "approve"), this.answerButton("Reject", () => this.send("reject"), "reject")]
      : [this.answerButton("Answer", () => this.respond(), "respond")];
    if (!approval) this.form = new AnswerForm(q.form, () => this.askLine());
    this.why = el("span.k-dim");
    this.controls = el("div.k-formrow", null, this.buttons, el("label.k-dim", { for: this.by.id }, "by"), this.by, this.note, this.why);
    this.act = new Act(ctx, this.controls, { answer: true, onLine: hooks.onLine, onRefused: (msg) => { if (this.form && msg.at) this.form.mark(msg.at); } });
    this.node = el(approval ? "div.k-card" : "div.k-card.k-formed", { role: "group" }, el("div.k-qhead", null, this.title, this.since), this.prompt, this.contextBox,
      this.form ? this.form.node : null, this.controls, this.act.status);
    this.update(q);
  }

  answerButton(text, fn, verb) {
    const node = button(text, () => {
      if (performance.now() - this.born < SETTLE_MS) return;
      fn();
    }, { kind: "k-btn.k-strong.k-answer" });
    const line = () => (this.q.lines && this.q.lines[verb]) || null;
    for (const type of ["focus", "mouseenter"]) node.addEventListener(type, () => { this.verb = verb; this.hooks.onLine(line()); this.askLine(); });
    for (const type of ["blur", "mouseleave"]) node.addEventListener(type, () => this.hooks.onLine(null));
    return node;
  }

  /** The code line of the answer as it is filled in now; the kernel writes it. */
  askLine() {
    const verb = this.verb || (this.form ? "respond" : "approve");
    this.hooks.askLine({ ...this.signed(), verb, ...(verb === "respond" ? this.form.draft() : null) });
  }

  signed() { return { id: this.q.id, event: this.q.event, by: this.by.value.trim() || null, note: this.note.value }; }

  /** Shown in place of another card, or newly: its buttons settle first. */
  appear() {
    this.born = performance.now();
    this.node.classList.add("k-settling");
    setTimeout(() => this.node.classList.remove("k-settling"), SETTLE_MS);
  }

  update(q) {
    this.q = q;
    put(this.title, q.budget ? "? budget spent" : `? ${oneLine(q.id)}`);
    this.node.setAttribute("aria-label", visible(`question ${q.id}`));
    refill(this.since, JSON.stringify([q.since, q.deadline, q.expired, new Date().toDateString()]), () => {
      const out = ["waiting since ", timeNode(q.since)];
      if (q.deadline) out.push(q.expired ? " · the deadline passed " : " · answer before ", timeNode(q.deadline));
      return out;
    });
    if (this.shownPrompt !== q.prompt) {
      this.shownPrompt = q.prompt;
      this.prompt.replaceChildren(marked(q.prompt || "The run asks for an answer; no prompt is recorded."));
      this.prompt.classList.toggle("k-dim", !q.prompt);
    }
    this.setContext(q.context);
    const can = this.hooks.can();
    const reason = q.expired ? "the deadline passed: this question takes no answer any more" : can === true || can === undefined ? "" : can || "";
    for (const node of [...this.buttons, this.by, this.note]) show(node, !reason);
    show(this.controls.querySelector("label"), !reason);
    put(this.why, reason ? (q.expired ? reason : `no answer from here: ${reason}`) : "");
    if (this.form) show(this.form.node, !reason);
    if (!this.by.value && !this.byTouched && document.activeElement !== this.by) this.by.value = this.hooks.by();
  }

  setContext(value) {
    const none = !value || (value.format === "none" && !value.note);
    show(this.contextBox, !none);
    this.node.classList.toggle("k-hasctx", !none);
    this.node.classList.toggle("k-wide", !none && !!this.form);
    if (none) return;
    const better = this.value && !this.value.truncated && value.truncated && this.value.bytes === value.bytes; // the whole is here already
    if (better || (this.value && this.value.text === value.text && this.value.format === value.format)) return;
    this.value = value;
    this.urls = this.urls || [];
    this.urls.splice(0).forEach((u) => URL.revokeObjectURL(u));
    const top = this.context.scrollTop;
    this.context.replaceChildren(valueBody(value, this.urls));
    this.context.scrollTop = top;
    show(this.more, value.truncated);
    put(this.more, `show all ${byteCount(value.bytes)}`);
    this.sayLines();
  }

  /** "12 of 2,140 lines": what is in view, of all there is. */
  sayLines() {
    if (!this.value || !this.node.isConnected || !this.context.clientHeight) return;
    const here = (this.value.text || "").replace(/\n$/, "").split("\n").length;
    const total = Math.max(here, this.q.context_lines || 0);
    const cut = this.value.truncated && total === here; // how many there are in all is not known
    const all = cut ? `more than ${thousands(total)}` : thousands(total);
    const rows = this.context.querySelectorAll(".k-line");
    const top = this.context.getBoundingClientRect().top, bottom = top + this.context.clientHeight;
    const scrolls = this.context.scrollHeight > this.context.clientHeight + 2;
    let text = cut ? `the first ${plural(here, "line")}, ${byteCount(this.value.shown)} of ${byteCount(this.value.bytes)}` : here === total ? (total === 1 ? "all of it, 1 line" : `all ${thousands(total)} lines`) : `${thousands(here)} of ${thousands(total)} lines are here`;
    if (scrolls && rows.length) {
      const first = this.findRow(rows, (box) => box.bottom > top + 2), last = this.findRow(rows, (box) => box.bottom > bottom + 2);
      const a = first + 1, b = Math.max(a, last);
      const more = here < total ? ` · the first ${thousands(here)} are here` : "";
      text = a === 1 && b >= total && !cut ? `all ${plural(total, "line")}` : a === 1 ? `${thousands(b)} of ${all} lines in view, scroll for the rest${more}` : `lines ${thousands(a)}–${thousands(b)} of ${all}${more}`;
    }
    put(this.lines, text);
    this.contextFoot.classList.toggle("k-cutmark", scrolls || cut || here < total);
  }

  findRow(rows, test) {
    let lo = 0, hi = rows.length;
    while (lo < hi) { const mid = (lo + hi) >> 1; if (test(rows[mid].getBoundingClientRect())) hi = mid; else lo = mid + 1; }
    return lo;
  }

  send(verb, more) {
    this.act.run({ verb, ...this.signed(), ...more });
  }

  respond() {
    const answer = this.form.read();
    if (answer) this.send("respond", answer);
  }

  destroy() {
    this.observer.disconnect();
    this.act.destroy();
    (this.urls || []).forEach((u) => URL.revokeObjectURL(u));
  }
}

class Questions {
  constructor(ctx, hooks) {
    Object.assign(this, { ctx, hooks, cards: new Map(), current: null });
    this.pager = el("div.k-pager", { role: "tablist", "aria-label": "open questions", hidden: true });
    this.holder = el("div.k-cards");
    this.said = el("div.k-decision", { tabindex: "-1", role: "status", "aria-live": "polite", hidden: true });
    this.node = el("div.k-ask", { hidden: true }, this.pager, this.holder, this.said);
  }

  /** Returns true when another card came into view. */
  update(summary) {
    this.summary = summary;
    const questions = summary.questions || [], doubts = summary.doubts || [];
    const wanted = new Map([...questions.map((q) => [`q/${q.id}`, q]), ...doubts.map((d) => [`d/${d.id}/${d.attempt}`, d])]);
    for (const [key, card] of this.cards) {
      if (wanted.has(key)) continue;
      if (card.act && (card.act.phase === "refused" || card.act.phase === "failed")) this.late = card.act.status.querySelector(".k-say").textContent;
      if (card.act && card.act.waiting) this.listen(card.act.n);
      if (card.node.contains(document.activeElement)) this.refocus = true;
      card.node.remove();
      const waiting = card.act && card.act.waiting ? this.ctx.acts.get(card.act.n) : null;
      card.destroy();
      if (waiting) this.ctx.acts.set(card.act.n, waiting);
      this.cards.delete(key);
    }
    for (const [key, data] of wanted) {
      let card = this.cards.get(key);
      if (!card) {
        card = key[0] === "q" ? new QuestionCard(this.ctx, data, this.hooks) : new DoubtCard(this.ctx, data, this.hooks);
        card.name = key[0] === "q" ? data.id : data.name;
        this.cards.set(key, card);
        show(card.node, false);
        this.holder.append(card.node);
      }
      card.update(data);
    }
    const keys = [...this.cards.keys()];
    if (!this.cards.has(this.current)) this.show(keys[0] || null);
    const several = keys.length > 1;
    show(this.pager, several);
    refill(this.pager, several ? JSON.stringify(keys) : "", () => [el("span.k-dim", null, `${keys.length} open`), ...keys.map((key) => {
      const tab = button(`${key[0] === "d" ? "in doubt: " : ""}${this.cards.get(key).name}`, () => { this.show(key); this.hooks.onShow(this.q(key)); }, { kind: "k-tab", role: "tab" });
      tab.card = key;
      return tab;
    })]);
    this.markPager();
    this.sayDecision(summary, keys.length > 0);
    show(this.node, keys.length > 0 || !this.said.hidden);
    this.node.classList.toggle("k-quiet", keys.length === 0);
    if (this.refocus && !this.node.hidden) { this.refocus = false; if (!this.said.hidden) this.said.focus({ preventScroll: true }); }
  }

  markPager() {
    for (const tab of this.pager.children) if (tab.card) tab.setAttribute("aria-selected", String(tab.card === this.current));
  }

  /** The question went before the click was answered: a refusal (who was first) is still told. */
  listen(n) {
    this.ctx.acts.set(n, { hear: (msg) => {
      if (msg.phase !== "refused" && msg.phase !== "failed") return;
      this.late = msg.text || msg.phase;
      if (this.summary) this.update(this.summary);
    } });
  }

  q(key) { const card = this.cards.get(key); return card ? card.q : null; }
  get question() { return this.q(this.current); }

  show(key) {
    this.current = key;
    for (const [k, card] of this.cards) show(card.node, k === key);
    this.markPager();
    this.hooks.onForm(!!(this.cards.get(key) && this.cards.get(key).form));
    const card = this.cards.get(key);
    if (card) { card.appear(); soon(() => card.sayLines && card.sayLines()); }
  }

  /** The newest recorded answer, from the journal: "approved by ana 14:29:03, entry 23; the run goes on here". */
  sayDecision(summary, open) {
    const all = summary.decisions || [], d = all[all.length - 1];
    show(this.said, !!d && !(open && this.cards.size && !this.late && !this.recent(d)));
    if (!d) return;
    const after = summary.going_on ? "; the run goes on here" : summary.after_text ? `; ${summary.after_text}` : "";
    refill(this.said, JSON.stringify([d, after, this.late, all.length]), () => {
      const out = [el("span.k-saysign", { "aria-hidden": "true" }, d.text === "rejected" ? "✕ " : "✓ "), el("b", null, d.text || "answered"), d.by ? ` by ${d.by} ` : " ", timeNode(d.at), ", ",
        button(`entry ${d.offset}`, () => this.hooks.onOffset(d.offset), { kind: "k-link" }), after];
      if (d.id) out.splice(1, 0, el("span.k-mono", null, d.id), " ");
      if (d.note) out.push(el("span.k-dim", null, ` · “${oneLine(d.note)}”`));
      if (this.late) out.push(el("span.k-late", null, ` · your click: ${this.late}`));
      return out;
    });
  }

  recent(d) {
    if (this.seen === undefined) this.seen = d.offset;
    return d.offset !== this.seen;
  }

  hear(msg) {
    for (const card of this.cards.values()) {
      if (card.setContext && this.hooks.offsetOf(card.q) === msg.offset) card.setContext(msg);
    }
  }

  destroy() { for (const card of this.cards.values()) card.destroy(); }
}
