// Answers built from a schema: one input for each field, or a JSON editor. Numbers leave as typed; Python reads them.

class AnswerForm {
  constructor(form, onInput) {
    Object.assign(this, { form, inputs: [] });
    this.node = el("div.k-fields");
    if (form.kind === "fields" || form.kind === "value") for (const field of form.fields) this.inputs.push(this.addField(field, this.node));
    else {
      this.area = el("textarea.k-in.k-area", { "aria-label": "answer as JSON", rows: "4", spellcheck: "false", placeholder: "answer as JSON, for example {\"approved\": true}" });
      this.node.append(this.area);
      if (form.schema) this.node.append(el("details.k-schema", null, el("summary", null, "schema"), el("div.k-value", { tabindex: "0" }, jsonBody(form.schema))));
    }
    this.problem = el("div.k-problemline", { role: "alert", hidden: true });
    this.node.append(this.problem);
    for (const type of ["input", "change"]) this.node.addEventListener(type, (e) => {
      if (e.target.getAttribute("aria-invalid")) { e.target.removeAttribute("aria-invalid"); show(this.problem, false); } // said until it is touched
      if (onInput) onInput();
    });
  }

  /** Returns {field, input} or, for an object, {field, inputs}. */
  addField(field, into) {
    const id = uid("k-field"), name = field.label || field.name;
    const hint = field.description ? el("div.k-dim.k-hint", { id: id + "-h" }, field.description) : null;
    const mark = field.required ? el("span.k-dim", { title: "required" }, " *") : null;
    if (field.type === "object") {
      const box = el("fieldset.k-group-field", null, el("legend", null, name, mark), hint), inputs = [];
      for (const inner of field.fields) inputs.push(this.addField(inner, box));
      into.append(box);
      return { field, inputs };
    }
    if (field.type === "choices") {
      const given = field.default || [];
      const boxes = field.options.map((text) => el("input", { type: "checkbox", value: text, checked: given.includes(text) }));
      const box = el("div.k-choices", { role: "group", "aria-label": name }, boxes.map((b, i) => el("label.k-check", null, b, field.options[i])));
      into.append(el("div.k-field", null, el("span.k-fieldname", null, name, mark), el("div", null, box, hint)));
      return { field, input: boxes[0] || box, boxes };
    }
    const input = this.makeInput(field, id);
    if (field.required) input.setAttribute("aria-required", "true");
    if (hint) input.setAttribute("aria-describedby", id + "-h");
    into.append(el("div.k-field", null, el("label", { for: id }, name, mark), el("div", null, input, hint)));
    return { field, input };
  }

  makeInput(field, id) {
    const first = field.default;
    if (field.type === "enum" || field.type === "boolean") {
      const options = field.type === "boolean" ? ["true", "false"] : field.options || [];
      const words = { true: "yes", false: "no" };
      const input = el("select.k-in", { id }, el("option", { value: "" }, field.required ? "choose …" : "(leave out)"), options.map((o, i) => {
        const option = el("option", { value: String(i) }, field.type === "boolean" ? words[o] : o);
        option.answer = o;
        return option;
      }));
      if (known(first)) input.selectedIndex = options.indexOf(first) + 1;
      return input;
    }
    if (field.type === "text" || field.type === "list" || field.type === "json") {
      const holder = { list: "one a line", json: "JSON" }[field.type];
      const value = Array.isArray(first) ? first.join("\n") : known(first) ? first : "";
      return el("textarea.k-in", { id, rows: "2", value, placeholder: holder, spellcheck: field.type === "text" ? null : "false", class: field.type === "json" ? "k-in k-area" : "k-in k-lines" });
    }
    const number = field.type === "integer" || field.type === "number";
    const holder = { integer: "whole number", number: "number", datetime: "2026-11-30T12:00:00Z" }[field.type];
    return el("input.k-in", { id, type: field.type === "date" ? "date" : "text", inputmode: field.type === "integer" ? "numeric" : number ? "decimal" : null, value: known(first) ? first : "", spellcheck: number ? "false" : null, placeholder: holder, class: number || field.type === "date" ? "k-in k-short" : "k-in" });
  }

  text({ field, input, boxes }) {
    if (boxes) return boxes.filter((b) => b.checked).map((b) => b.value);
    if (field.type === "list") return input.value.split("\n").filter((t) => t.trim());
    return input.tagName === "SELECT" ? (input.selectedIndex > 0 ? input.options[input.selectedIndex].answer : "") : input.value;
  }

  /** What is filled in now, without a word about what is missing. */
  draft() { return this.area ? { value_text: this.area.value } : { fields: this.collect(this.inputs, () => true) || {} }; }

  /** {fields} or {value_text}; null when something is missing, which is then said beside the form. */
  read() {
    show(this.problem, false);
    if (this.area) {
      if (this.area.value.trim()) return { value_text: this.area.value };
      return this.refuse(this.area, "write the answer as JSON first");
    }
    const fields = this.collect(this.inputs, (given, text) => this.check(given, text));
    return fields && { fields };
  }

  collect(inputs, check) {
    const out = {};
    for (const given of inputs) {
      const { field } = given;
      if (given.inputs) {
        if (!field.required && !this.touched(given.inputs)) continue; // an optional part that nobody filled in is left out
        const inner = this.collect(given.inputs, check);
        if (inner === null) return null;
        out[field.name] = inner;
        continue;
      }
      const text = this.text(given);
      given.input.removeAttribute("aria-invalid");
      if (!check(given, text)) return null;
      if (text.length || field.required) out[field.name] = text;
    }
    return out;
  }

  touched(inputs) { return inputs.some((g) => (g.inputs ? this.touched(g.inputs) : this.text(g).length > 0)); }

  check({ field, input }, text) {
    const name = field.label || field.name;
    if (!text.length) {
      if (field.required && field.type !== "string" && field.type !== "text" && field.type !== "list" && field.type !== "choices") return this.refuse(input, `${name} is required`) || false;
      return true;
    }
    if (field.type === "integer" && !/^\s*[+-]?\d+\s*$/.test(text)) return this.refuse(input, `${name} takes a whole number`) || false;
    if (field.type === "number" && !/^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$/.test(text)) return this.refuse(input, `${name} takes a number`) || false;
    return true;
  }

  /** The kernel refused what stands at this path of the answer ("$.contact.name"). */
  mark(path, inputs = this.inputs, above = "$") {
    for (const { field, input, inputs: inner } of inputs) {
      const own = `${above}.${field.name}`;
      if (path !== own && !path.startsWith(`${own}.`) && !path.startsWith(`${own}[`)) continue;
      if (inner) return this.mark(path, inner, own);
      input.setAttribute("aria-invalid", "true");
      return input.scrollIntoView({ block: "nearest" });
    }
  }

  refuse(input, text) {
    input.setAttribute("aria-invalid", "true");
    put(this.problem, text);
    show(this.problem, true);
    (input.closest(".k-field") || input).after(this.problem); // beside what it is about, in view with it
    input.focus({ preventScroll: false });
    this.problem.scrollIntoView({ block: "nearest" });
    return null;
  }
}
