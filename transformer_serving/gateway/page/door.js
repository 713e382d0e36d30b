// What both pages share: the key, requests that bring it, and elements whose text is text.

// Here and nowhere else: no storage, no cookie, no address.
let key = "";

export const hasKey = () => key !== "";

export function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key) headers.set("authorization", `Bearer ${key}`);
  return fetch(path, { ...options, headers, cache: "no-store" });
}

export const $ = (id) => document.getElementById(id);

// Children are elements or texts; texts are never read as HTML.
export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(attribute, value);
  }
  made.append(...children);
  return made;
}

export function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// Show `room` with what `path` answers, once a key that may ask it is there where one is needed.
export function enter(path, show) {
  async function attempt() {
    let reply, body;
    try {
      reply = await ask(path);
      body = await reply.json();
    } catch (error) {
      notice(`No answer from the gateway: ${error.message}`);
      return;
    }
    const refused = reply.status === 401 || reply.status === 403;
    $("door").hidden = !refused;
    $("room").hidden = !reply.ok;
    $("forget").hidden = !key || refused;
    notice(reply.ok || (refused && !key) ? "" : body.message || `The gateway answered ${reply.status}`);
    if (refused) {
      key = "";
      $("key").value = "";
      $("key").focus();
    }
    if (reply.ok) show(body);
  }
  $("door").addEventListener("submit", (event) => {
    event.preventDefault();
    key = $("key").value.trim();
    $("key").value = "";
    // No header can hold it: what came along as the key was copied, such as an ellipsis.
    if (/[^\x21-\x7e]/.test(key)) {
      key = "";
      notice("This is no key: it holds a character that no key has. Copy it once more, as it was printed.");
      return;
    }
    attempt();
  });
  $("forget").addEventListener("click", () => {
    key = "";
    location.reload();
  });
  return attempt();
}

// JSON with a line for each thing, except what is short and flat, and lists of numbers.
export function pretty(value, indent = "") {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const deeper = indent + "  ";
  if (Array.isArray(value)) {
    if (value.every((one) => one === null || typeof one !== "object")) {
      const line = `[${value.map((one) => JSON.stringify(one)).join(", ")}]`;
      if (line.length < 72 || value.every((one) => typeof one === "number")) return line;
    }
    return `[\n${value.map((one) => deeper + pretty(one, deeper)).join(",\n")}\n${indent}]`;
  }
  const rows = Object.entries(value);
  if (!rows.length) return "{}";
  const isFlat = indent && rows.every(([, one]) => one === null || typeof one !== "object");
  const line = isFlat ? `{ ${rows.map(([name, one]) => `${JSON.stringify(name)}: ${JSON.stringify(one)}`).join(", ")} }` : "";
  if (line && line.length < 72) return line;
  const lines = rows.map(([name, one]) => `${deeper}${JSON.stringify(name)}: ${pretty(one, deeper)}`);
  return `{\n${lines.join(",\n")}\n${indent}}`;
}
