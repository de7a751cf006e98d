// One action and what is said about it, where its buttons were: sending → the kernel is busy → received → done | refused | failed | not sent.

const SAY = {
  sending: "sending …",
  busy: "the kernel is busy; the answer waits and will be recorded when the cell ends",
  busyAction: "the kernel is busy; this waits and will be done when the cell ends",
  received: "received; recording …",
  receivedAction: "received; working …",
  unsent: "not sent, nothing recorded: run this cell again",
  silent: "no answer from this kernel, nothing recorded so far: run this cell again",
};

class Act {
  /** controls: the element with the buttons, which steps aside while something is said (stay: but not for what was done). answer: words for an answer, else for an action. */
  constructor(ctx, controls, { answer = false, onDone = null, onRefused = null, keep = false, stay = false, onLine = null } = {}) {
    Object.assign(this, { ctx, controls, answer, onDone, onRefused, keep, stay, onLine, phase: "idle", n: null, timers: [] });
    this.status = el("div.k-status", { role: "status", "aria-live": "polite", tabindex: "-1", hidden: true });
  }

  get idle() { return this.phase === "idle"; }
  get waiting() { return this.phase === "sending" || this.phase === "busy" || this.phase === "received"; }

  run(message) {
    if (this.waiting) return;
    this.clear();
    this.n = Math.random().toString(36).slice(2) + Date.now().toString(36);
    const hadFocus = this.controls.contains(document.activeElement);
    this.ctx.acts.set(this.n, this);
    this.say("sending", SAY.sending);
    if (hadFocus) this.status.focus({ preventScroll: true });
    if (!this.ctx.send({ type: "act", n: this.n, ...message })) return this.stop("unsent", SAY.unsent);
    this.timers.push(setTimeout(() => this.waitLonger(), 1000), setTimeout(() => this.waitLonger(), 3000));
    this.timers.push(setInterval(() => this.waitLonger(), 5000));
  }

  /** Nothing heard yet. A kernel known to be idle has dropped the message (it was restarted); else it is busy. */
  waitLonger() {
    if (this.phase !== "sending" && this.phase !== "busy") return;
    const state = this.ctx.kernelState();
    const since = Date.now() - this.since;
    if (state === "dead" || state === "disposed" || state === "terminating") return this.stop("unsent", SAY.unsent);
    if (state === "idle" && since > 2900) return this.stop("unsent", SAY.silent);
    this.say("busy", this.answer ? SAY.busy : SAY.busyAction);
  }

  /** An `acted` message for this click. */
  hear(msg) {
    if (msg.phase === "received") {
      if (this.waiting || this.phase === "unsent") this.say("received", this.answer ? SAY.received : SAY.receivedAction);
      return;
    }
    this.stop(msg.phase, msg.text || { done: "done", refused: "refused", failed: "failed" }[msg.phase] || msg.phase, msg);
    if (msg.phase === "done" && this.onDone) this.onDone(msg);
    if (msg.phase === "refused" && this.onRefused) this.onRefused(msg);
  }

  stop(phase, text, msg) {
    this.clear();
    this.say(phase, text, msg);
  }

  say(phase, text, msg) {
    if (phase === "sending") this.since = Date.now();
    this.phase = phase;
    const signs = { done: "✓", refused: "✕", differs: "✕", failed: "✕", unsent: "✕" };
    const kids = [el(`span.k-say`, null, signs[phase] ? el("span.k-saysign", { "aria-hidden": "true" }, signs[phase] + " ") : el("span.k-spin", { "aria-hidden": "true" }), text)];
    if (msg && msg.code) kids.push(el("code.k-code", { title: "code to run instead" }, msg.code));
    if (msg && msg.ways && msg.ways.length) kids.push(el("div.k-ways", null, msg.ways.map((way) => this.way(way))));
    if (msg && msg.open) kids.push(button(`open ${shortId(msg.open)}`, () => this.ctx.send({ type: "open", run_id: msg.open }), { kind: "k-link", title: msg.open }));
    if (phase === "refused" || phase === "differs" || phase === "failed" || phase === "unsent" || (phase === "done" && this.keep)) {
      kids.push(button(phase === "done" || phase === "differs" ? "close" : "back", () => this.reset(true), { kind: "k-link" }));
    }
    if (msg && msg.traceback) {
      kids.push(el("details.k-trace", null, el("summary", null, "traceback"), el("pre", { tabindex: "0" }, msg.traceback)));
    }
    this.status.className = `k-status k-say-${phase}`;
    this.status.replaceChildren(...kids);
    show(this.status, true);
    show(this.controls, this.stay && phase === "done");
    if (phase === "refused" || phase === "failed" || phase === "unsent") this.status.scrollIntoView({ block: "nearest" });
  }

  /** A way on after a refusal: a button, and what it does in one line. */
  way({ label, text, message, line }) {
    const node = button(label, () => this.run(message), { kind: "k-btn.k-small" });
    if (this.onLine) {
      for (const type of ["focus", "mouseenter"]) node.addEventListener(type, () => this.onLine(line));
      for (const type of ["blur", "mouseleave"]) node.addEventListener(type, () => this.onLine(null));
    }
    return el("div.k-way", null, node, el("span", null, ticked(text)));
  }

  /** Back to the buttons. */
  reset(focus) {
    this.clear();
    this.phase = "idle";
    show(this.status, false);
    show(this.controls, true);
    if (focus) {
      const first = this.controls.querySelector("button:not([disabled]),input,textarea");
      if (first) first.focus({ preventScroll: true });
    }
  }

  clear() {
    for (const timer of this.timers) { clearTimeout(timer); clearInterval(timer); }
    this.timers = [];
  }

  destroy() {
    this.clear();
    if (this.n) this.ctx.acts.delete(this.n);
  }
}
