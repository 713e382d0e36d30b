// The page at /docs: what /openapi.json says, as text.

import { $, enter, make, pretty } from "./door.js";

const METHODS = ["get", "post", "put", "delete"];

// The words for a schema, one level deep: what is deeper has lines of its own.
function words(schema) {
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.anyOf) return choices(schema.anyOf).join(" or ");
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.properties) return "object";
  if (schema.type === "array") return `a list, each ${words(schema.items ?? {})}`;
  const limits = Object.entries({ minimum: ["from", ""], maximum: ["to", ""], maxLength: ["of at most", " characters"] })
    .filter(([name]) => schema[name] !== undefined)
    .map(([name, [before, after]]) => `${before} ${schema[name].toLocaleString("en")}${after}`);
  return [[schema.type ?? "anything"].flat().filter((one) => one !== "null").join(" or "), ...limits].join(" ");
}

// Each said once; a list of what stands there already is "a list of them".
function choices(schemas) {
  const alone = new Set(schemas.filter((one) => one.type !== "array").map(words));
  const lists = schemas.filter((one) => one.type === "array");
  const listed = lists.map((one) => (alone.has(words(one.items ?? {})) ? "a list of them" : words(one)));
  return [...new Set([...[...alone].filter(Boolean), ...listed])];
}

// Rows of an object's fields; those of inner objects with their path.
function fields(schema, before = "") {
  const required = schema.required ?? [];
  return Object.entries(schema.properties ?? {}).flatMap(([name, one]) => {
    const inner = [one, ...(one.anyOf ?? [])].find((row) => row.properties);
    const told = [one.description, one.default === undefined ? "" : `default ${JSON.stringify(one.default)}`];
    const kind = inner ? "object" : words(one);
    const row = make("tr", {}, make("td", {}, make("code", {}, before + name)), make("td", {}, kind), make("td", {}, [required.includes(name) ? "required" : "", ...told].filter(Boolean).join("; ")));
    return [row, ...(inner ? fields(inner, `${before}${name}.`) : [])];
  });
}

function table(heads, rows) {
  const head = make("tr", {}, ...heads.map((one) => make("th", { scope: "col" }, one)));
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": heads[0] }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function request(body) {
  return Object.entries(body.content).flatMap(([type, { schema, example }]) => {
    const forms = (schema.anyOf ?? [schema]).filter((form) => form.properties);
    const parts = [make("h4", {}, `Request, ${type}`)];
    for (const form of forms) {
      if (form.title) parts.push(make("p", { class: "form" }, form.title));
      parts.push(table(["field", "is", ""], fields(form)));
    }
    if (!forms.length) parts.push(make("p", {}, words(schema)));
    if (example !== undefined) parts.push(make("pre", { tabindex: "0", "aria-label": "Example" }, pretty(example)));
    return parts;
  });
}

function details(operation) {
  const parts = [];
  if (operation.description) parts.push(make("p", {}, operation.description));
  if (operation.parameters) {
    const rows = operation.parameters.map((one) => make("tr", {}, make("td", {}, make("code", {}, one.name)), make("td", {}, `in ${one.in}`), make("td", {}, words(one.schema ?? {}))));
    parts.push(make("h4", {}, "Parameters"), table(["name", "where", "is"], rows));
  }
  if (operation.requestBody) parts.push(...request(operation.requestBody));
  const rows = Object.entries(operation.responses ?? {}).map(([status, one]) => make("tr", {}, make("td", {}, make("code", {}, status)), make("td", {}, one.description ?? "")));
  parts.push(make("h4", {}, "Answers"), table(["status", "when"], rows));
  return parts;
}

function shown(path, method, operation) {
  const made = make("details", { class: "operation" }, make("summary", {}, make("span", { class: `method ${method}` }, method.toUpperCase()), make("span", { class: "path" }, decodeURI(path)), make("span", { class: "told" }, operation.summary ?? "")));
  // Made when it is opened: there may be hundreds.
  made.addEventListener("toggle", () => made.children.length > 1 || made.append(make("div", { class: "inner" }, ...details(operation))));
  return made;
}

enter("openapi.json", (api) => {
  const groups = new Map();
  for (const [path, operations] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((one) => operations[one])) {
      const tag = operations[method].tags?.[0] ?? "others";
      groups.set(tag, [...(groups.get(tag) ?? []), shown(path, method, operations[method])]);
    }
  }
  const sections = [...groups].map(([tag, rows]) => make("section", {}, make("h2", {}, tag), ...rows));
  $("raw").replaceChildren("OpenAPI document: ", make("a", { href: "openapi.json" }, "openapi.json"));
  $("operations").replaceChildren(...sections);
});
