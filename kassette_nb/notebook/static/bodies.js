// Bodies of values that are more than text: code, errors with their call, conversations with a model.

const CODE_WORDS = new Set(("and as assert async await break case catch class const continue def default del do elif else enum except export extends finally fn for from func function global "
  + "if impl import in interface is lambda let match mod mut new nonlocal not or package pass private public raise return self static struct super switch this throw try type use var void while with yield "
  + "SELECT FROM WHERE INSERT UPDATE DELETE CREATE ALTER TABLE INTO VALUES AND OR NOT JOIN ON GROUP ORDER BY").split(" "));
const CODE_LITERALS = new Set(["True", "False", "None", "true", "false", "null", "undefined", "NULL"]);
const CODE_TOKEN = /("""[^]*?(?:"""|$)|\x27\x27\x27[^]*?(?:\x27\x27\x27|$)|"(?:\\.|[^"\\\n])*"?|\x27(?:\\.|[^\x27\\\n])*\x27?|`(?:\\.|[^`\\])*`?)|(#[^\n]*|\/\/[^\n]*|--\s[^\n]*)|(\b\d[\w.]*)|([A-Za-z_]\w*)|[^]/g;

/** Words, texts, comments and numbers told apart, in whatever language: enough to read by. */
function codeBody(text) {
  const root = el("div.k-text.k-codetext");
  let row = el("div.k-line"), plain = "";
  const flush = () => { if (plain) { row.append(plain); plain = ""; } };
  const put = (piece, cls) => {
    piece.split("\n").forEach((part, i) => {
      if (i) { flush(); root.append(row); row = el("div.k-line"); }
      if (!part) return;
      if (!cls && visible(part) === part) { plain += part; return; }
      flush();
      const node = el(cls ? "span." + cls : "span");
      node.append(marked(part));
      row.append(node);
    });
  };
  for (const m of text.matchAll(CODE_TOKEN)) {
    if (m[1] !== undefined) put(m[1], "k-js");
    else if (m[2] !== undefined) put(m[2], "k-comment");
    else if (m[3] !== undefined) put(m[3], "k-jn");
    else if (m[4] !== undefined) put(m[4], CODE_WORDS.has(m[4]) ? "k-word" : CODE_LITERALS.has(m[4]) ? "k-jl" : "");
    else put(m[0], "");
  }
  flush();
  root.append(row);
  return root;
}

/** What was raised, what the call was given, and where it came from. */
function errorBody(value) {
  const root = el("div.k-error");
  const head = el("div.k-errhead");
  const name = el("b");
  name.append("✕ ", marked(value.name || "error"));
  const words = el("div.k-errwords");
  words.append(marked(value.text || ""));
  head.append(name, words);
  root.append(head);
  const section = (title, node) => root.append(el("div.k-sect", null, title), node);
  if (value.args) section("called with", valueBody(value.args));
  if (value.traceback) {
    const trace = el("div.k-text");
    for (const line of value.traceback.replace(/\n$/, "").split("\n")) {
      const row = el(`div.k-line${/^\s+File "/.test(line) ? ".k-file" : /^\S/.test(line) && !/^Traceback/.test(line) ? ".k-del" : ""}`);
      if (line) row.append(marked(line));
      trace.append(row);
    }
    section("traceback", trace);
  } else section("traceback", el("div.k-none", null, "none was recorded"));
  return root;
}

/** Turns of a model call: what is new since the previous call first, what was sent before folded below. */
function conversationBody(value) {
  const root = el("div.k-talk");
  const turn = (t) => {
    const box = el(`div.k-turn${t.answer ? ".k-answered" : ""}`, null, el("div.k-who", null, t.who, t.answer ? el("span.k-dim", null, " · answer") : null));
    const words = t.text ? (/^\s*[[{]/.test(t.text) || !/```/.test(t.text) ? textBody(t.text) : fenced(t.text)) : el("div.k-none", null, t.cut ? "" : "empty");
    words.classList.add("k-words");
    box.append(words);
    if (t.cut) box.append(el("div.k-cut", null, `… ${thousands(t.cut)} more characters`));
    return box;
  };
  const fresh = value.turns.filter((t) => t.new), old = value.turns.filter((t) => !t.new);
  root.append(el("div.k-sect", null, old.length ? "new since the previous call" : "the whole conversation"), ...fresh.map(turn));
  if (old.length) {
    const box = el("details.k-old", null, el("summary", null, `sent before · ${plural(old.length, "message")}`));
    box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(...old.map(turn)); });
    root.append(box);
  }
  return root;
}

/** Text with fenced code coloured; everything else stays as written. */
function fenced(text) {
  const root = el("div.k-text");
  text.split(/^(```[^\n]*\n[^]*?^```[ \t]*$)/m).forEach((part, i) => {
    if (!part) return;
    if (i % 2 === 0) { root.append(textBody(part.replace(/^\n|\n$/g, ""))); return; }
    const at = part.indexOf("\n");
    const inner = part.slice(at + 1).replace(/\n?```[ \t]*$/, "");
    const diff = /^```(diff|patch)/.test(part);
    root.append(el("div.k-dim", null, part.slice(0, at)), diff ? diffBody(inner) : codeBody(inner), el("div.k-dim", null, "```"));
  });
  return root;
}
