// Answers built from a schema: one input for each field, or a JSON editor. Numbers leave as typed; Python reads them.

class AnswerForm {
  constructor(form) {
    this.form = form;
    this.inputs = [];
    this.node = el("div.k-fields");
    if (form.kind === "fields") for (const field of form.fields) this.addField(field);
    else {
      this.area = el("textarea.k-in.k-area", { "aria-label": "answer as JSON", rows: "4", spellcheck: "false", placeholder: "answer as JSON, for example {\"approved\": true}" });
      this.node.append(this.area);
      if (form.schema) this.node.append(el("details.k-schema", null, el("summary", null, "schema"), el("div.k-value", { tabindex: "0" }, jsonBody(form.schema))));
    }
    this.problem = el("div.k-problemline", { role: "alert", hidden: true });
    this.node.append(this.problem);
  }

  addField(field) {
    const id = uid("k-field"), name = field.label || field.name, first = field.default;
    let input;
    if (field.type === "enum" || field.type === "boolean") {
      const options = field.type === "boolean" ? ["true", "false"] : field.options || [];
      const words = { true: "yes", false: "no" };
      input = el("select.k-in", { id }, el("option", { value: "" }, field.required ? "choose …" : "(leave out)"), options.map((o, i) => {
        const option = el("option", { value: String(i) }, field.type === "boolean" ? words[o] : o);
        option.answer = o;
        return option;
      }));
      if (known(first)) input.selectedIndex = options.indexOf(first) + 1;
    } else if (field.type === "text") {
      input = el("textarea.k-in.k-area", { id, rows: "3", value: known(first) ? first : "" });
    } else {
      const number = field.type === "integer" || field.type === "number";
      input = el("input.k-in", { id, type: "text", inputmode: field.type === "integer" ? "numeric" : number ? "decimal" : null, value: known(first) ? first : "", spellcheck: number ? "false" : null });
    }
    if (field.required) input.setAttribute("aria-required", "true");
    const hint = field.description ? el("div.k-dim.k-hint", { id: id + "-h" }, field.description) : null;
    if (hint) input.setAttribute("aria-describedby", id + "-h");
    const kind = { integer: "whole number", number: "number" }[field.type];
    if (kind) input.setAttribute("placeholder", kind);
    this.inputs.push({ field, input });
    this.node.append(el("div.k-field", null, el("label", { for: id }, name, field.required ? el("span.k-dim", null, " · required") : null), el("div", null, input, hint)));
  }

  text(input) {
    return input.tagName === "SELECT" ? (input.selectedIndex > 0 ? input.options[input.selectedIndex].answer : "") : input.value;
  }

  /** {fields} or {value_text}; null when something is missing, which is then said beside the form. */
  read() {
    show(this.problem, false);
    if (this.area) {
      if (this.area.value.trim()) return { value_text: this.area.value };
      return this.refuse(this.area, "write the answer as JSON first");
    }
    const fields = {};
    for (const { field, input } of this.inputs) {
      const text = this.text(input);
      input.removeAttribute("aria-invalid");
      if (text === "") {
        if (field.required && field.type !== "string" && field.type !== "text") return this.refuse(input, `${field.label || field.name} is required`);
        if (!field.required) continue;
      } else if (field.type === "integer" && !/^\s*[+-]?\d+\s*$/.test(text)) return this.refuse(input, `${field.label || field.name} takes a whole number`);
      else if (field.type === "number" && !/^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$/.test(text)) return this.refuse(input, `${field.label || field.name} takes a number`);
      fields[field.name] = text;
    }
    return { fields };
  }

  refuse(input, text) {
    input.setAttribute("aria-invalid", "true");
    put(this.problem, text);
    show(this.problem, true);
    input.focus({ preventScroll: false });
    return null;
  }
}
