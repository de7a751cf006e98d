// The head of a run panel: what it is, how it stands, what it cost; what can be done to the whole run.

class PanelHead {
  constructor(ctx, { closable, onLine, onStale, askLine }) {
    this.onStale = onStale;
    this.ctx = ctx;
    this.name = el("span.k-name");
    this.runId = el("span.k-mono.k-dim.k-runid");
    this.chip = el("span");
    this.lineage = el("span.k-lineage");
    this.progress = el("span.k-progress", { hidden: true });
    this.goOn = button("Continue", () => this.act.run({ verb: "go_on" }), { kind: "k-btn.k-small", hidden: true });
    this.verify = button("Verify", () => this.checkCode(), { kind: "k-btn.k-small", hidden: true });
    this.retry = button("Retry", () => this.askRetry(true), { kind: "k-btn.k-small", hidden: true, "aria-expanded": "false" });
    this.cancel = button("Cancel…", () => this.askCancel(true), { kind: "k-btn.k-small", hidden: true, title: "end this run for good", "aria-expanded": "false" });
    this.close = closable ? button("close", () => ctx.send({ type: "close" }), { kind: "k-link", title: "close this panel", "aria-label": "close this panel" }) : null;
    this.reason = el("input.k-in", { type: "text", placeholder: "reason (optional)", "aria-label": "reason for cancelling" });
    this.reason.addEventListener("input", () => askLine({ verb: "cancel", reason: this.reason.value.trim() || null }));
    this.confirm = el("span.k-formrow.k-confirm", { hidden: true }, el("span", null, "Ends the run for good; nothing of it is undone."), this.reason,
      button("Cancel the run", () => { this.askCancel(false); this.act.run({ verb: "cancel", reason: this.reason.value.trim() || null }); }, { kind: "k-btn.k-small" }),
      button("keep it", () => this.askCancel(false), { kind: "k-link" }));
    this.retrySays = el("span");
    this.retryGo = button("Retry and run", () => { this.askRetry(false); this.act.run({ verb: "retry" }); }, { kind: "k-btn.k-small" });
    this.retryBox = el("span.k-formrow.k-confirm", { hidden: true }, this.retrySays, this.retryGo, button("close", () => this.askRetry(false), { kind: "k-link" }));
    for (const [node, name] of [[this.retry, "retry"], [this.retryGo, "retry"], [this.goOn, "go_on"], [this.verify, "verify"], [this.cancel, "cancel"], [this.confirm, "cancel"]]) {
      for (const type of ["focus", "focusin", "mouseenter"]) node.addEventListener(type, () => onLine(((this.summary || {}).lines || {})[name]));
      for (const type of ["blur", "focusout", "mouseleave"]) node.addEventListener(type, () => onLine(null));
    }
    this.controls = el("span.k-formrow", null, this.goOn, this.retry, this.verify, this.cancel);
    this.act = new Act(ctx, this.controls, { keep: true, stay: true, onLine });
    this.facts = el("div.k-facts");
    this.ending = el("div.k-ending", { hidden: true });
    this.problem = el("div.k-problemline", { hidden: true, role: "note" });
    this.node = el("div.k-head", null,
      el("div.k-headtop", null, el("div.k-headrow", null, this.name, this.runId, this.chip, this.lineage), el("span.k-headright", null, this.controls, this.act.status, this.close),
        el("div.k-headrow.k-headfacts", null, this.facts, this.progress)),
      this.confirm, this.retryBox, this.ending, this.problem);
  }

  /** Greyed it still takes the focus and a click, and says why: a tooltip alone reaches no keyboard. */
  checkCode() {
    const can = (this.summary.can || {}).verify;
    if (can === true) this.act.run({ verb: "verify" });
    else this.act.stop("refused", `cannot be verified: ${can}`);
  }

  askCancel(open) {
    show(this.confirm, open);
    this.cancel.setAttribute("aria-expanded", String(open));
    (open ? this.reason : this.cancel).focus({ preventScroll: true });
  }

  askRetry(open) {
    show(this.retryBox, open);
    this.retry.setAttribute("aria-expanded", String(open));
    (open ? this.retryGo : this.retry).focus({ preventScroll: true });
  }

  link(runId, text) {
    return button(text || shortId(runId), () => this.ctx.send({ type: "open", run_id: runId }), { kind: "k-link", title: `open ${runId} below` });
  }

  update(s, onOffset) {
    this.summary = s;
    put(this.name, s.label || s.run_id);
    this.name.classList.toggle("k-mono", !s.label);
    tip(this.name, s.label || s.run_id);
    put(this.runId, s.label ? s.run_id : "");
    tip(this.runId, s.run_id);
    show(this.runId, !!s.label);
    refill(this.chip, s.state, () => stateChip(s.state));
    refill(this.lineage, JSON.stringify([s.source, s.forks, s.workflow, s.version, s.code]), () => this.lineageParts(s));
    refill(this.facts, JSON.stringify([s.facts, s.started, s.updated, s.state]), () => this.factParts(s));
    const going = s.can || {};
    show(this.goOn, (s.state === "interrupted" || s.state === "ready") && going.go_on !== undefined);
    this.goOn.disabled = going.go_on !== true;
    tip(this.goOn, going.go_on === true ? "replays what is recorded and goes on in this kernel" : going.go_on || "");
    show(this.verify, going.verify !== undefined && !["damaged", "missing"].includes(s.state));
    this.verify.setAttribute("aria-disabled", String(going.verify !== true));
    tip(this.verify, going.verify === true ? "replays the run with the code loaded here and all live work forbidden; writes nothing" : `cannot be verified: ${going.verify}`);
    const open = ["suspended", "running", "interrupted", "ready"].includes(s.state);
    show(this.cancel, open && going.cancel === true);
    if (!open && !this.confirm.hidden) show(this.confirm, false);
    const retry = going.retry;
    show(this.retry, !!retry);
    if (retry) {
      refill(this.retrySays, retry.text, () => ticked(retry.text));
      put(this.retryGo, retry.blocked ? "Retry, to be run later" : "Retry and run");
      tip(this.retryGo, retry.blocked || "");
    } else show(this.retryBox, false);
    if (this.act.phase === "done" && this.stateWas !== s.state) this.act.reset(false);
    this.stateWas = s.state;
    show(this.problem, !!s.problem);
    put(this.problem, s.problem ? `⚠ ${s.problem}` : "");
    tip(this.problem, s.problem || "");
    const e = s.ending;
    show(this.ending, !!e);
    if (e) {
      this.ending.className = `k-ending k-tone-${stateTone(e.kind)}`;
      refill(this.ending, JSON.stringify(e), () => [el("span.k-endtext", { title: (e.text || "").slice(0, 1000) }, el("b", null, `${stateSign(e.kind)} ${e.kind}`),
        e.step ? [" at ", el("span.k-mono", null, e.step)] : null, e.text ? el("span.k-endwords", null, e.step ? e.text.split(":", 1)[0] : oneLine(e.text)) : null),
        el("span.k-dim", null, e.at ? timeNode(e.at) : null, known(e.offset) ? ", " : null, known(e.offset) ? button(`entry ${e.offset}`, () => onOffset(e.offset), { kind: "k-link" }) : null)]);
    }
  }

  lineageParts(s) {
    const parts = [];
    if (s.workflow) parts.push([el("span", { title: "workflow" }, s.workflow, s.version ? `, version ${s.version}` : "")]);
    if (s.source) parts.push(["fork of ", this.link(s.source.run_id), s.source.at ? " at " : null, s.source.at ? el("span.k-mono", null, s.source.at) : null]);
    const forks = s.forks || [];
    if (forks.length) {
      const shown = forks.slice(0, 3).flatMap((f, i) => [i ? ", " : null, this.link(f.run_id, f.label || shortId(f.run_id))]);
      parts.push([`${plural(forks.length, "fork")}: `, ...shown, forks.length > 3 ? ` and ${forks.length - 3} more` : null]);
    }
    if (s.code && s.code.text) {
      const words = [s.code.state === "differs" ? "⚠ " : null, ...ticked(s.code.text)];
      parts.push([el(`span.k-codestate${["missing", "differs"].includes(s.code.state) ? ".k-warn" : ""}`, { title: s.code.state === "differs" ? "that step was recorded by other code than the function loaded now, or under another Python version" : null }, words),
        ...(s.code.state === "differs" ? [" ", button("run again from there…", () => this.onStale(s.code.offset), { kind: "k-link" })] : [])]);
    }
    return parts.flatMap((p, i) => (i ? [el("span.k-sep", { "aria-hidden": "true" }, " · "), ...p] : p)).filter(Boolean);
  }

  factParts(s) {
    const f = s.facts || {}, out = [];
    if (s.state === "damaged" || s.state === "missing") return out;
    const fact = (figure, words, title) => out.push(el("span.k-fact", { title }, figure ? el("b", null, figure) : null, words));
    const l = f.limits || {};
    if (known(f.steps)) fact(thousands(f.steps), known(l.max_steps) ? ` of ${plural(l.max_steps, "step")}` : f.steps === 1 ? " step" : " steps");
    if (known(f.tokens)) fact(tokenCount(f.tokens), `${known(l.max_tokens) ? ` of ${tokenCount(l.max_tokens)}` : ""} tokens`, `${thousands(f.tokens)} tokens`);
    const c = f.cost;
    if (c) {
      const limited = known(l.max_cost_usd), own = known(c.own) ? c.own : limited ? 0 : null;
      const unpriced = c.unpriced ? `${known(own) ? " + " : ""}${plural(c.unpriced, "call")} without a price` : "";
      const words = `${limited ? ` of ${money(l.max_cost_usd)}` : ""}${unpriced}${c.copied ? ` + ${money(c.copied)} copied` : ""}`;
      if (known(own) || words) fact(known(own) ? money(own) : "", words.replace(known(own) ? /$^/ : /^ /, ""), c.copied ? "spent by this run itself; what the copied steps cost was paid by its source" : "spent by this run itself");
    }
    if (known(f.working_ms)) fact(duration(f.working_ms), " working");
    if ((f.waiting_ms || 0) >= 1000 || s.state === "suspended") out.push(el("span.k-fact", null, "waiting ", this.waiting = el("span", null, seconds(f.waiting_ms || 0))));
    else this.waiting = null;
    if (f.sessions > 1) fact("", plural(f.sessions, "session"));
    if (s.started) out.push(el("span.k-fact", null, "started ", timeNode(s.started)));
    return out;
  }

  /** While it runs: the step that runs now, and for how long. */
  tick(s, rows, arrived, beat) {
    let text = "";
    if (this.waiting && s.state === "suspended") put(this.waiting, seconds((s.facts.waiting_ms || 0) + Date.now() - arrived));
    if (s.state === "running" && s.started) {
      const now = Date.parse(s.as_of) - Date.parse(s.started) + (Date.now() - arrived);
      const open = [];
      for (let i = rows.length - 1; i >= 0 && i > rows.length - 200; i--) if (known(rows[i].t0) && !known(rows[i].t1) && !isWait(rows[i]) && rows[i].kind !== "note") open.push(rows[i]);
      const r = open[open.length - 1], calls = s.current || [], ago = (at) => seconds(Date.parse(s.as_of) - Date.parse(at) + Date.now() - arrived);
      if (calls.length) text = `▶ ${calls[0].id} for ${ago(calls[0].since)}${calls.length > 1 ? ` and ${calls.length - 1} more` : ""}`;
      else if (r) text = `▶ ${r.id} for ${seconds(now - r.t0)}${open.length > 1 ? ` and ${open.length - 1} more` : ""}`;
      else text = `▶ running, ${duration(Math.max(1000, Math.floor((Date.parse(s.as_of) - Date.parse(s.updated || s.as_of) + Date.now() - arrived) / 1000) * 1000))} since the last entry`;
      const still = s.going_on && beat && Date.now() - beat > 3000 ? Date.now() - beat : 0;
      if (still) text = `⏸ the kernel is busy: a cell blocks it, and runs of it have stood still for ${duration(Math.floor(still / 1000) * 1000)}`;
      else if (s.stood_still) text += ` · stood still for ${duration(s.stood_still * 1000)} while a cell blocked the kernel`;
    }
    put(this.progress, text);
    show(this.progress, !!text);
  }
}
