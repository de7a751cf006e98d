// Runs side by side: a table of attempts, the steps as a matrix with equal stretches folded, and one cell against the base.

/** Rows drawn at a time: the browser lays out every cell, seen or not. */
const MATRIX_PAGE = 60;

class Compare {
  constructor(ctx, summary, { closable = false } = {}) {
    Object.assign(this, { ctx, rows: [], open: new Set(), limit: MATRIX_PAGE, left: 0, at: null, what: "value", cells: new Map() });
    this.title = el("span.k-name");
    this.sub = el("span.k-lineage");
    this.head = el("div.k-head", null, el("div.k-headtop", null, el("div.k-headrow", null, this.title, this.sub),
      closable ? el("span.k-headright", null, button("close", () => ctx.send({ type: "close" }), { kind: "k-link", "aria-label": "close this comparison" })) : null));
    this.attempts = new Attempts({ name: (r) => this.name(r), onOrder: () => this.later(), onBase: (run) => ctx.send({ type: "base", run }) });
    this.paired = el("div.k-paired.k-factline");
    this.grid = el("div.k-matrix", { role: "grid", tabindex: "0", "aria-label": "steps of the attempts" });
    this.grid.addEventListener("keydown", (e) => this.key(e));
    this.grid.addEventListener("scroll", () => this.further());
    this.grid.addEventListener("click", (e) => {
      const cell = e.target.closest("[data-run]");
      if (cell && !String(getSelection())) this.choose(+cell.dataset.row, +cell.dataset.run);
    });
    this.view = new ValueView({ onMore: () => this.at && ctx.send({ ...this.question(), whole: true }), label: "difference to the base" });
    this.cellTitle = el("span.k-factline", null, "select a cell to see it against the base");
    this.tabs = ["value", "files"].map((what) => button(what, () => { this.what = what; this.tab(); this.askCell(); }, { kind: "k-link.k-tab", role: "tab" }));
    this.tablist = el("span.k-tabs", { role: "tablist", "aria-label": "what to compare", hidden: true }, this.tabs);
    this.diff = el("div.k-celldiff", null, el("div.k-kv", null, this.tablist, this.cellTitle, this.view.bar), this.view.body);
    this.code = el("code.k-code");
    this.foot = el("div.k-foot", null, this.code, copyButton(() => this.code.textContent, () => this.code));
    this.node = el("div.k-compare", { role: "group", "aria-label": "comparison" }, this.head, this.attempts.node, this.paired, this.grid, this.diff, this.foot);
    this.ask = debounce(() => this.askCell(), 90);
    this.update(summary);
  }

  static identity(s) { return `compare/${(s.runs || []).map((r) => r.run_id).join("/")}`; }

  base() { return Math.max(0, this.summary.runs.findIndex((r) => r.base)); }
  name(run) { return run.label || shortId(run.run_id); }

  update(s) {
    this.summary = s;
    put(this.title, s.title);
    put(this.sub, s.sub || "");
    put(this.code, s.code_line || "");
    this.attempts.update(s.runs, s.total);
    refill(this.paired, JSON.stringify([s.paired, s.note, s.lineage]), () => [s.paired ? el("span", null, `against the base: ${s.paired}`) : null, s.note ? el("span", null, s.note) : null, Attempts.family(s.lineage, (r) => this.name(r))]);
    show(this.paired, !!s.paired || !!s.note || (s.lineage || []).length > 1);
    this.later();
  }

  question() { return { type: "cell", row: this.at[0], run: this.at[1], base: this.base(), what: this.what }; }

  tab() {
    const kept = !!this.at && this.rows[this.at[0]] && this.rows[this.at[0]].cells.some((c) => c && c.w);
    show(this.tablist, kept);
    if (!kept) this.what = "value";
    this.tabs.forEach((tab, n) => tab.setAttribute("aria-selected", String((n ? "files" : "value") === this.what)));
  }

  hear(msg) {
    if (msg.type === "rows") {
      if (msg.from > this.rows.length) { this.ctx.send({ type: "hello" }); return; }
      this.rows = this.rows.slice(0, msg.from).concat(msg.rows);
      const before = this.based;
      this.based = this.base();
      // Another base means other rows: what was folded open or selected is of the old ones.
      if (known(before) && before !== this.based) { this.open.clear(); this.at = null; }
      this.later();
    } else if (msg.type === "cell" && this.at && msg.row === this.at[0] && msg.run === this.at[1]) {
      clearTimeout(this.slow);
      put(this.cellTitle, msg.title || this.words());
      this.view.show(msg);
    }
  }

  later() { if (!this.frame) this.frame = soon(() => { this.frame = 0; this.draw(); }); }

  /** Rows and folded stretches: [{i}] and [{from, to}]. */
  plan() {
    const out = [];
    let from = 0, kind = null;
    const flush = (to) => {
      const folds = kind !== null && to - from >= (kind === "eq" ? 2 : 4), open = this.open.has(from);
      if (folds) out.push({ from, to, kind, open });
      if (!folds || open) for (let i = from; i < to; i++) out.push({ i });
    };
    this.rows.forEach((r, i) => {
      const alone = r.cells.filter(Boolean).length === 1 && r.cells.length > 1;
      const next = r.eq ? "eq" : alone ? r.cells.findIndex(Boolean) : null;
      if (i && next === kind) return;
      flush(i);
      from = i;
      kind = next;
    });
    flush(this.rows.length);
    return out;
  }

  draw() {
    const runs = this.summary.runs, narrow = runs.length >= 8, plan = this.plan(), order = this.attempts.order();
    this.grid.style.setProperty("--k-cols", `minmax(${narrow ? 96 : 110}px, 170px) repeat(${runs.length}, ${narrow ? `minmax(${runs.length > 15 ? 32 : 48}px, 1fr)` : `minmax(${runs.length > 4 ? 96 : 128}px, 1fr)`})`);
    this.grid.style.setProperty("--k-colgap", narrow ? "2px" : "8px");
    this.grid.style.setProperty("--k-cellpad", narrow ? "2px 1px" : "2px 3px");
    this.cells.clear();
    const header = el("div.k-mrow.k-mhead", { role: "row" }, el("span", { role: "columnheader" }, "step"),
      order.map((n) => el("span", { role: "columnheader", title: `${this.name(runs[n])}\n${runs[n].run_id}` }, narrow ? (runs[n].base ? el("b", null, `${n + 1}`) : `${n + 1}`) : `${this.name(runs[n])}${runs[n].base ? " · base" : ""}`)));
    const kids = [header];
    let drawn = 0;
    for (const item of plan) {
      if (++drawn > this.limit) break;
      if (known(item.from)) {
        const n = item.to - item.from;
        const fold = button(`${item.open ? "▾" : "▸"} ${item.kind === "eq" ? plural(n, "equal step") : `${plural(n, "step")} only in ${this.name(runs[item.kind])}`}`, () => { if (item.open) this.open.delete(item.from); else this.open.add(item.from); this.draw(); }, { kind: "k-link.k-dim.k-foldrow", title: item.kind === "eq" ? "the same in all" : "the others have no such steps", "aria-expanded": String(!!item.open), tabindex: "-1" });
        kids.push(el("div.k-mrow.k-mfold", { role: "row" }, el("span", { role: "rowheader" }, fold), item.open ? null : order.map((c) => el("span.k-dim", { role: "gridcell" }, item.kind === "eq" ? "=" : c === item.kind ? this.rows.slice(item.from, item.to).map((r) => r.k).join(", ").slice(0, 200) : "–"))));
        continue;
      }
      const r = this.rows[item.i];
      kids.push(el("div.k-mrow", { role: "row" }, el("span.k-mono", { role: "rowheader", title: r.k }, r.k), order.map((n) => {
        const c = r.cells[n];
        const cell = c ? this.cell(r, c, narrow) : el("span.k-mcell.k-dim", { role: "gridcell", title: "no such step" }, "–");
        if (c) { cell.dataset.row = item.i; cell.dataset.run = n; cell.id = `${this.view.body.id || (this.view.body.id = uid("k-cell"))}-${item.i}-${n}`; this.cells.set(`${item.i}/${n}`, cell); }
        return cell;
      })));
    }
    this.left = plan.length - this.limit;
    if (this.left > 0) kids.push(button(`show ${Math.min(MATRIX_PAGE, this.left)} more of ${thousands(this.left)} rows`, () => { this.limit += MATRIX_PAGE; this.draw(); }, { kind: "k-link.k-morerows" }));
    if (!this.rows.length) kids.push(el("div.k-none", null, "no steps to compare"));
    const top = this.grid.scrollTop, left = this.grid.scrollLeft;
    this.grid.replaceChildren(...kids);
    this.grid.scrollTop = top;
    this.grid.scrollLeft = left;
    this.mark();
    if (!this.at && this.rows.length) this.first();
  }

  /** Draws more rows before the last one comes into sight. */
  further() {
    const { scrollTop, clientHeight, scrollHeight } = this.grid;
    if (this.left <= 0 || scrollHeight - scrollTop - clientHeight > clientHeight) return;
    this.limit += MATRIX_PAGE;
    this.later();
  }

  cell(r, c, narrow) {
    const bad = c.e ? ".k-tone-err" : "";
    const words = `${c.e ? "✕ " : ""}${c.v ? "✎ " : ""}${c.mv ? "⇄ " : ""}${oneLine(c.p || "")}`;
    const same = r.eq ? "=" : c.m || "";
    return el(`span.k-mcell${bad}`, { role: "gridcell", title: c.mv ? `${words}\n⇄ this branch stands elsewhere in this run` : words, "aria-label": `${r.k}: ${same ? (r.eq ? "equal" : "value " + same) + ", " : ""}${words}` }, same ? el("b.k-letter", null, same) : null, narrow ? (c.e ? "✕" : c.v ? "✎" : c.mv ? "⇄" : "") : r.eq ? el("span.k-dim", null, words) : words);
  }

  /** Opens on the first difference. */
  first() {
    const i = this.rows.findIndex((r) => !r.eq);
    if (i < 0) return;
    const base = this.base(), others = this.rows[i].cells.map((c, n) => (c && n !== base ? n : -1)).filter((n) => n >= 0);
    const other = others.find((n) => !this.rows[i].cells[base] || this.rows[i].cells[n].m !== this.rows[i].cells[base].m);
    if (this.rows[i].cells.some(Boolean)) this.choose(i, known(other) ? other : base, false);
  }

  choose(row, run, scroll = true) {
    this.at = [row, run];
    this.tab();
    this.mark();
    const cell = this.cells.get(`${row}/${run}`);
    if (cell && scroll) cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.ask();
  }

  words() {
    const [row, run] = this.at, runs = this.summary.runs, b = this.base();
    return run === b ? `${this.rows[row].k} · ${this.name(runs[b])}` : `${this.rows[row].k} · ${this.name(runs[b])} → ${this.name(runs[run])}`;
  }

  askCell() {
    if (!this.at) return;
    put(this.cellTitle, this.words());
    const sent = this.ctx.send(this.question());
    clearTimeout(this.slow);
    if (!sent) this.view.say("no kernel: run this cell again to read the values");
    else this.slow = setTimeout(() => this.view.say("the kernel is busy; the difference comes when its cell ends"), 1500);
  }

  mark() {
    for (const [key, cell] of this.cells) {
      const on = !!this.at && key === this.at.join("/");
      cell.classList.toggle("k-msel", on);
      if (on) { cell.setAttribute("aria-selected", "true"); this.grid.setAttribute("aria-activedescendant", cell.id); } else cell.removeAttribute("aria-selected");
    }
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target !== this.grid) return;
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[e.key];
    const rows = [...new Set([...this.cells.keys()].map((k) => +k.split("/")[0]))].sort((a, b) => a - b);
    if (!rows.length || (!step && e.key !== "Home" && e.key !== "End")) return;
    e.preventDefault();
    const order = this.attempts.order(), runs = order.length;
    let [row, run] = this.at || [rows[0], 0];
    if (e.key === "Home") row = rows[0];
    else if (e.key === "End") row = rows[rows.length - 1];
    let r = Math.max(0, rows.indexOf(row)), c = order.indexOf(run);
    for (let n = 0; n < rows.length + runs; n++) {
      if (step) { r += step[0]; c += step[1]; }
      if (r < 0 || c < 0 || r >= rows.length || c >= runs) return;
      if (this.cells.has(`${rows[r]}/${order[c]}`)) { this.choose(rows[r], order[c]); return; }
      if (!step) { c = (c + 1) % runs; }
    }
  }

  said() {}
  redraw() {}
  destroy() { this.ask.stop(); clearTimeout(this.slow); this.view.free(); }
}
