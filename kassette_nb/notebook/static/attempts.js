// The table of attempts: sorted by any column, one of them pinned as the base; and the family they come from.

class Attempts {
  /** `onOrder` is told when the order of the attempts changed, `onBase` which one is to be the base. */
  constructor({ onOrder, onBase, name }) {
    Object.assign(this, { onOrder, onBase, name, sort: null, down: true, runs: [], total: null });
    this.node = el("div.k-attempts", { tabindex: "0", role: "region", "aria-label": "attempts" });
  }

  update(runs, total) {
    this.runs = runs;
    this.total = total;
    this.draw();
  }

  /** Indices of the attempts as they are shown; what is not known comes last, whichever way. */
  order() {
    const all = this.runs.map((_, n) => n);
    if (!this.sort) return all;
    const value = (n) => { const r = this.runs[n]; return this.sort === "outcome" ? (r.solved === false ? 0 : r.solved ? 2 : known(r.outcome) ? 1 : null) : r[this.sort]; };
    return all.sort((a, b) => {
      const x = value(a), y = value(b);
      if (!known(x) || !known(y)) return known(x) ? -1 : known(y) ? 1 : a - b;
      return (this.down ? y - x : x - y) || a - b;
    });
  }

  by(key) {
    // A second click turns the order round, a third one gives the first order back.
    if (this.sort !== key) { this.sort = key; this.down = key === "points" || key === "outcome"; this.first = this.down; }
    else if (this.down === this.first) this.down = !this.down;
    else this.sort = null;
    this.draw();
    this.onOrder();
    const again = this.node.querySelector(`[data-key="${key}"]`);
    if (again) again.focus({ preventScroll: true });
  }

  columns() {
    const files = (r) => [`+${thousands(r.added)} −${thousands(r.removed)}`, r.files === 1 ? null : el("span.k-delta", null, ` ${thousands(r.files)} files`)];
    return [
      ["score", "points", (r) => r.score, "more is better"], ["steps", "steps", (r) => thousands(r.steps)], ["tokens", "tokens", (r) => tokenCount(r.tokens)],
      ["cost alone", "cost_own", (r) => money(r.cost_own), "spent by this run itself"], ["cost in all", "cost_total", (r) => money(r.cost_total), "with the prefix it was forked from"],
      ["working", "working_ms", (r) => duration(r.working_ms)], ["files", "files", files, "lines added and removed since the beginning"],
    ].filter(([, key]) => this.runs.some((r) => known(r[key])) && !(key === "points" && this.runs.every((r) => !known(r.points) || (known(r.solved) && r.score === (r.solved ? "solved" : "not solved")))));
  }

  draw() {
    const { runs, total } = this, base = runs.find((r) => r.base), many = runs.length >= 8, columns = this.columns();
    const words = { tokens: tokenCount, cost_own: money, cost_total: money, working_ms: duration, steps: thousands };
    const delta = (r, key) => {
      const say = key === "points" ? (x) => String(+x.toPrecision(6)) : words[key], x = r[key], b = base && base[key];
      return say && r !== base && known(x) && known(b) && x !== b ? el("span.k-delta", null, ` ${x > b ? "+" : "−"}${say(Math.abs(x - b))}`) : null;
    };
    const head = (text, key, title, left) => {
      const on = key !== null && this.sort === key;
      return el(left ? "th.k-left" : "th", { scope: "col", title, "aria-sort": on ? (this.down ? "descending" : "ascending") : null },
        key === null ? text : button(`${text}${on ? (this.down ? " ↓" : " ↑") : ""}`, () => this.by(key), { kind: "k-sort", "data-key": key }));
    };
    const row = (n) => {
      const r = runs[n];
      return el(r.base ? "tr.k-base" : "tr", null,
        el("th", { scope: "row", title: r.run_id }, many ? el("span.k-dim.k-nth", null, String(n + 1)) : null, el(r.label ? "span" : "span.k-mono", null, this.name(r)), r.label ? el("span.k-mono.k-dim", null, " " + shortId(r.run_id)) : null,
          r.base ? el("span.k-dim", null, " base") : button("compare with this", () => this.onBase(n), { kind: "k-link.k-pin", title: "make this one the base" })),
        this.outcome(r), columns.map(([, key, text]) => el("td", null, known(r[key]) ? text(r) : "–", delta(r, key))));
    };
    const sums = { steps: total && total.steps, tokens: total && total.tokens, cost_total: total && total.cost };
    const table = el("table", null,
      el("thead", null, el("tr", null, head("attempt", null, "", true), head("outcome", "outcome", "", true), columns.map(([text, key, , title]) => head(text, key, title)))),
      el("tbody", null, this.order().map(row)),
      total ? el("tfoot", null, el("tr", null, el("th", { scope: "row", colspan: 2 }, `all ${runs.length}, a shared prefix counted once`),
        columns.map(([, key]) => el("td", null, known(sums[key]) ? words[key](sums[key]) : "")))) : null);
    const top = this.node.scrollTop;
    this.node.replaceChildren(table);
    this.node.scrollTop = top;
  }

  /** Completed is not solved: green and red stand only where a score says so, or something went wrong. */
  outcome(r) {
    const text = oneLine(r.outcome || r.state);
    if (known(r.solved) && r.state === "completed") return el(`td.k-left.k-tone-${r.solved ? "good" : "err"}`, { title: r.outcome || "" }, `${r.solved ? "✓ solved" : "✕ not solved"}`);
    const done = r.state === "completed";
    return el(done ? "td.k-left" : `td.k-left.k-tone-${stateTone(r.state)}`, { title: r.outcome || "" }, `${done ? "" : stateSign(r.state) + " "}${text}`);
  }

  /** The fork family as a tree, for attempts that come from one another. */
  static family(lines, name) {
    if (!lines || lines.length < 2) return null;
    return el("details.k-family", null, el("summary", null, "where they come from"), lines.map((line) => el("div", { style: `padding-left:${line.depth * 18}px` },
      line.depth ? el("span.k-dim", null, "└ ") : null, el(line.label ? "span" : "span.k-mono", null, name(line)), line.label ? el("span.k-mono.k-dim", null, " " + shortId(line.run_id)) : null,
      line.at ? [el("span.k-dim", null, " at "), el("span.k-mono", null, line.at)] : null, known(line.number) ? null : el("span.k-dim", null, " · not compared here"))));
  }
}
