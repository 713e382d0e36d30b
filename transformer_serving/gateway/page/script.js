// The page at /: the endpoints, a request, its answer and where its time went.

import { callOf, languages } from "./code.js";
import { $, ask, enter, hasKey, make, notice, pretty } from "./door.js";
import { Told, reader } from "./events.js";

// A longer answer is cut for the eye; nobody reads a million numbers.
const SHOWN = 100_000;
// Where "Skip to the request" leads: in the address of no endpoint a slash stands as it is.
const SKIPPED = "/main";
const BASE = document.baseURI.replace(/#.*$/, "");

let endpoints = [];
let chosen = null;
let language = "curl";
// Ends the request that is under way.
let leave = () => {};

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

// What stands in the address may be cut in the middle of a character: that names none.
function wantedName() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

function choose() {
  if (location.hash === `#${SKIPPED}` && chosen) return;
  const wanted = wantedName();
  leave();
  chosen = endpoints.find(({ name }) => name === wanted) ?? endpoints[0];
  $(SKIPPED).hidden = !chosen;
  if (!chosen) return;
  [...$("endpoints").children].forEach((row, at) => {
    if (endpoints[at] === chosen) {
      row.setAttribute("aria-current", "true");
      // Chromium 150 goes on with Tab from what was scrolled to. Where no endpoint is named it is
      // the first one, in sight anyway, and the first Tab is to lead to the page's beginning.
      if (wanted) row.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else row.removeAttribute("aria-current");
  });
  document.title = `${chosen.name} · transformer-serving`;
  $("name").textContent = chosen.name;
  $("facts").replaceChildren(...factsOf(chosen.card).map((fact) => make("span", {}, fact)));
  $("answered").hidden = true;
  reset();
}

// Text comes as it is made; the golden request asks for a few words of it, at once.
const exampleOf = ({ card, example }) => (card?.task === "text-generation" ? { text: example.text, stream: true } : example);

function reset() {
  $("body").value = pretty(exampleOf(chosen));
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
  const leaving = new AbortController();
  leave = () => leaving.abort();
  $("send").disabled = true;
  $("stop").hidden = false;
  $("outcome").replaceChildren("waiting");
  const began = performance.now();
  try {
    const reply = await ask(url, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: $("body").value,
      signal: leaving.signal,
    });
    if (reply.headers.get("content-type")?.startsWith("text/event-stream")) {
      await showEvents(reply, new Told(began), () => asked === chosen);
    } else {
      const text = await reply.text();
      if (asked === chosen) showAnswer(reply, text, performance.now() - began);
    }
  } catch (error) {
    if (asked === chosen) showFailure(error);
  } finally {
    $("send").disabled = false;
    $("stop").hidden = true;
  }
}

function showAnswer(reply, text, milliseconds) {
  notice("");
  showOutcome(String(reply.status), reply.ok, milliseconds, text.length);
  $("pace").replaceChildren();
  showText(formatted(text), !reply.ok);
  showTiming(reply.headers.get("server-timing"));
  $("answered").hidden = false;
}

function showOutcome(status, isGood, milliseconds, length) {
  const size = length < 10_000 ? `${length} characters` : `${Math.round(length / 1000)}k characters`;
  $("outcome").replaceChildren(make("span", { class: `status ${isGood ? "good" : "bad"}` }, status), `${milliseconds.toFixed(1)} ms · ${size}`);
}

function showText(whole, isBad) {
  const more = whole.length - SHOWN;
  $("answer").textContent = more > 0 ? `${whole.slice(0, SHOWN)}\n… and ${more} more characters` : whole;
  $("answer").classList.toggle("bad", isBad);
}

// A text as it comes, for as long as its endpoint is chosen.
async function showEvents(reply, told, isChosen) {
  notice("");
  showTiming(reply.headers.get("server-timing"));
  showTold(told);
  $("answered").hidden = false;
  const read = reader();
  const pieces = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let broken = "ended early";
  try {
    for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) {
      for (const event of read(piece.value)) told.add(event, performance.now());
      showTold(told);
    }
  } catch (error) {
    broken = error.name === "AbortError" ? "stopped" : error.message;
  }
  if (!isChosen()) return;
  const status = told.error?.code ?? (told.isWhole ? String(reply.status) : broken);
  showOutcome(status, told.isWhole && !told.error, performance.now() - told.began, told.text.length);
}

function showTold(told) {
  $("pace").replaceChildren(...told.pace.map((row) => make("span", {}, row)));
  // An error stands behind what came before it.
  const rows = told.error ? [told.text, pretty(told.error)] : [told.text];
  const isAtEnd = $("answer").scrollTop + $("answer").clientHeight >= $("answer").scrollHeight - 4;
  showText(rows.filter(Boolean).join("\n\n"), told.error !== null);
  if (isAtEnd) $("answer").scrollTop = $("answer").scrollHeight;
}

function showFailure(error) {
  $("outcome").replaceChildren(make("span", { class: "status bad" }, error.name === "AbortError" ? "stopped" : "no answer"));
  $("answer").textContent = error.message;
  $("answer").classList.add("bad");
  $("timing").replaceChildren();
  $("pace").replaceChildren();
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
$("stop").addEventListener("click", () => leave());
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
