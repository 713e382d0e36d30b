// The page at /: the endpoints, a request, its answer and where its time went.

import { callOf, languages } from "./code.js";
import { $, ask, enter, hasKey, make, notice, pretty } from "./door.js";

// A longer answer is cut for the eye; nobody reads a million numbers.
const SHOWN = 100_000;
const BASE = document.baseURI.replace(/#.*$/, "");

let endpoints = [];
let chosen = null;
let language = "curl";

function factsOf(card) {
  if (!card) return ["an endpoint whose code is not of this kit"];
  const facts = [...(card.task === chosen.name ? [] : [card.task]), `${card.max_length} tokens a text`, `${card.limits.max_texts} texts a request`];
  if (card.dimensions) facts.push(`${card.dimensions} dimensions`);
  if (card.labels) facts.push(card.labels.length > 4 ? `${card.labels.length} labels` : card.labels.join(", "));
  facts.push(`bundle ${card.bundle_version}`);
  return facts;
}

function listEndpoints() {
  const rows = endpoints.map(({ name, card }) =>
    make("a", { href: `#${encodeURIComponent(name)}` }, make("span", { class: "name" }, name), make("span", { class: "task" }, card && card.task !== name ? card.task : "")),
  );
  $("endpoints").replaceChildren(...rows);
}

function choose() {
  const wanted = decodeURIComponent(location.hash.slice(1));
  if (wanted === "main" && chosen) return;
  chosen = endpoints.find(({ name }) => name === wanted) ?? endpoints[0];
  $("main").hidden = !chosen;
  if (!chosen) return;
  [...$("endpoints").children].forEach((row, at) => {
    if (endpoints[at] === chosen) {
      row.setAttribute("aria-current", "true");
      row.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else row.removeAttribute("aria-current");
  });
  document.title = `${chosen.name} · transformer-serving`;
  $("name").textContent = chosen.name;
  $("facts").replaceChildren(...factsOf(chosen.card).map((fact) => make("span", {}, fact)));
  $("answered").hidden = true;
  reset();
}

function reset() {
  $("body").value = pretty(chosen.example);
  $("body").rows = Math.min(14, Math.max(4, $("body").value.split("\n").length + 1));
  showCode();
}

// The body in one line where it is JSON: as it stands in code.
const call = () => {
  const made = callOf(chosen.name, $("body").value, BASE, hasKey());
  return made.body === undefined ? made : { ...made, text: JSON.stringify(made.body) };
};

function showCode() {
  const made = call();
  const rows = languages(chosen.card, made);
  const shown = rows.find(({ name }) => name === language) ?? rows[0];
  const tabs = rows.map((row) =>
    make("button", { type: "button", role: "tab", id: `as-${row.name}`, "aria-controls": "code", "aria-selected": String(row === shown), tabindex: row === shown ? "0" : "-1" }, row.name),
  );
  const old = [...$("languages").children];
  if (old.length !== tabs.length || old.some((tab, at) => tab.outerHTML !== tabs[at].outerHTML)) {
    $("languages").replaceChildren(...tabs);
  }
  $("code").setAttribute("aria-labelledby", `as-${shown.name}`);
  $("code").textContent = shown.write(made);
}

function select(tab) {
  language = tab.textContent;
  showCode();
  $(`as-${language}`).focus();
}

function onTabKey(event) {
  const tabs = [...$("languages").children];
  const at = tabs.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  select(tabs[(to + tabs.length) % tabs.length]);
}

// The header's rows as [name, milliseconds]; where the gateway answered itself there is a total only.
function timingOf(header) {
  return (header ?? "")
    .split(",")
    .map((row) => row.split(";").map((part) => part.trim()))
    .map(([name, ...parts]) => [name, Number(parts.find((part) => part.startsWith("dur="))?.slice(4))])
    .filter(([name, duration]) => name && Number.isFinite(duration));
}

function showTiming(header) {
  const rows = timingOf(header);
  const whole = rows.reduce((sum, [, duration]) => sum + duration, 0);
  let before = 0;
  $("timing").replaceChildren(
    ...rows.map(([name, duration]) => {
      const bar = make("span", { class: "bar" });
      bar.style.marginLeft = `${(100 * before) / (whole || 1)}%`;
      bar.style.width = `${(100 * duration) / (whole || 1)}%`;
      before += duration;
      return make("div", { role: "listitem" }, make("span", {}, name), make("span", { class: "track" }, bar), make("span", { class: "number" }, duration.toFixed(2)));
    }),
  );
}

function formatted(text) {
  try {
    return pretty(JSON.parse(text));
  } catch {
    return text;
  }
}

async function send(event) {
  event.preventDefault();
  const asked = chosen;
  const { url } = call();
  $("send").disabled = true;
  $("outcome").replaceChildren("waiting");
  const began = performance.now();
  try {
    const reply = await ask(url, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: $("body").value,
    });
    const text = await reply.text();
    if (asked === chosen) showAnswer(reply, text, performance.now() - began);
  } catch (error) {
    if (asked === chosen) showFailure(error);
  } finally {
    $("send").disabled = false;
  }
}

function showAnswer(reply, text, milliseconds) {
  notice("");
  const state = reply.ok ? "good" : "bad";
  const size = text.length < 10_000 ? `${text.length} characters` : `${Math.round(text.length / 1000)}k characters`;
  $("outcome").replaceChildren(make("span", { class: `status ${state}` }, String(reply.status)), `${milliseconds.toFixed(1)} ms · ${size}`);
  const whole = formatted(text);
  const more = whole.length - SHOWN;
  $("answer").textContent = more > 0 ? `${whole.slice(0, SHOWN)}\n… and ${more} more characters` : whole;
  $("answer").classList.toggle("bad", !reply.ok);
  showTiming(reply.headers.get("server-timing"));
  $("answered").hidden = false;
}

function showFailure(error) {
  $("outcome").replaceChildren(make("span", { class: "status bad" }, "no answer"));
  $("answer").textContent = error.message;
  $("answer").classList.add("bad");
  $("timing").replaceChildren();
  $("answered").hidden = false;
}

async function copy() {
  try {
    await navigator.clipboard.writeText($("code").textContent);
    $("copy").textContent = "Copied";
  } catch {
    // Browsers have no clipboard for pages over plain HTTP from elsewhere.
    getSelection().selectAllChildren($("code"));
    $("copy").textContent = "Selected";
  }
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
}

$("request").addEventListener("submit", send);
$("body").addEventListener("input", showCode);
$("body").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (!$("send").disabled) $("request").requestSubmit();
  }
});
$("reset").addEventListener("click", reset);
$("copy").addEventListener("click", copy);
$("languages").addEventListener("click", (event) => event.target.role === "tab" && select(event.target));
$("languages").addEventListener("keydown", onTabKey);
addEventListener("hashchange", choose);

enter("page/endpoints", (body) => {
  endpoints = body.endpoints;
  if (!endpoints.length) {
    notice(hasKey() ? "No endpoint is here that this key may ask." : "No endpoint is here yet: deploy one.");
    $("room").hidden = true;
    return;
  }
  listEndpoints();
  choose();
});
