// What a step changed in the files of its run: a row a file, its difference below, long ones folded.

const FILE_SIGN = { A: ["added", "good"], M: ["modified", "run"], D: ["deleted", "err"], R: ["renamed", "run"], T: ["another type", "wait"], C: ["copied", "good"] };
const FOLD_LINES = 160; // a longer difference is folded at first

/** value.files as rows; value.ask(n) asks for a text, value.onLine(line) shows a line of code. */
function filesBody(value) {
  const root = el("div.k-files");
  const rows = value.files.map((file, n) => fileRow(file, () => value.ask(n), (line) => value.onLine(line)));
  root.append(...rows.map((row) => row.node));
  if (value.more) root.append(el("div.k-cut", null, `… and ${plural(value.more, "more file")}: the code line below gives all`));
  value.fill = (n) => rows[n] && rows[n].fill();
  return root;
}

function fileRow(file, ask, onLine) {
  const [word, tone] = FILE_SIGN[file.s] || ["changed", "calm"];
  const path = el("span.k-path");
  if (file.was) path.append(el("span.k-dim", null, el("bdi", null, marked(file.was)), " → "));
  path.append(el("bdi", null, marked(file.path)));
  const counts = el("span.k-counts");
  if (file.binary) counts.append(el("span.k-dim", null, `binary, ${sizeChange(file)}`));
  else if (known(file.added)) counts.append(el("span.k-plus", null, `+${thousands(file.added)}`), " ", el("span.k-minus", null, `−${thousands(file.removed)}`));
  const head = el("summary.k-filehead", null, el(`b.k-filesign.k-tone-${tone}`, { "aria-hidden": "true" }, file.s), el("span.k-said", null, word), path, counts);
  const body = el("div.k-filebody");
  const node = el("details.k-filerow", null, head, body);
  let asked = false;
  const fill = () => {
    asked = false;
    if (known(file.text)) {
      const kids = [valueBody({ format: "diff", text: file.text })];
      if (file.truncated) kids.push(button(`${byteCount(file.shown)} of ${byteCount(file.bytes)} · show all`, (e) => { put(e.target, "loading …"); ask(); }, { kind: "k-link" }));
      body.replaceChildren(...kids);
    } else if (file.why) body.replaceChildren(el("div.k-dim", null, `${file.why}${file.binary ? ` (${sizeChange(file)})` : ""}`));
    const size = known(file.lines) && file.lines > FOLD_LINES ? `${thousands(file.lines)} lines, ${byteCount(file.bytes)}` : "";
    if (size && !counts.querySelector(".k-dim")) counts.prepend(el("span.k-dim", null, size), " ");
  };
  node.addEventListener("toggle", () => {
    if (!node.open || known(file.text) || file.why || asked) return;
    asked = true;
    body.replaceChildren(el("div.k-dim", null, ask() ? "reading …" : "no kernel: run this cell again to read it"));
  });
  for (const type of ["focusin", "mouseenter"]) node.addEventListener(type, () => onLine(file.line));
  for (const type of ["focusout", "mouseleave"]) node.addEventListener(type, () => onLine(null));
  fill();
  node.open = known(file.text) && !(file.lines > FOLD_LINES);
  return { node, fill };
}

/** "812 kB → 813 kB", or the one size there is. */
function sizeChange(file) {
  const sizes = [file.before, file.after].filter(known).map(byteCount);
  return sizes.length === 2 && sizes[0] === sizes[1] ? sizes[0] : sizes.join(" → ");
}
