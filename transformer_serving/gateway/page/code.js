// The call of the page as code: one row a language, with the operation that an endpoint must know.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const string = (text) => JSON.stringify(text);

// JSON as a literal of Python.
function python(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return string(value);
  const deeper = indent + "    ";
  const isList = Array.isArray(value);
  const rows = isList
    ? value.map((one) => python(one, deeper))
    : Object.entries(value).map(([name, one]) => `${string(name)}: ${python(one, deeper)}`);
  const line = rows.join(", ");
  const [open, close] = isList ? "[]" : "{}";
  if (line.length < 64 && !line.includes("\n")) return open + line + close;
  return `${open}\n${rows.map((row) => `${deeper}${row},\n`).join("")}${indent}${close}`;
}

const streams = ({ body }) => body?.stream === true;

function curl(call) {
  const key = call.hasKey ? ' \\\n  -H "Authorization: Bearer $KEY"' : "";
  return (
    `curl ${streams(call) ? "-sN" : "-s"} ${quoted(call.url)}${key} \\\n` +
    `  -H 'Content-Type: application/json' \\\n  -d ${quoted(call.text)}`
  );
}

const importsOf = (call) => (call.hasKey ? "import os\n\n" : "");
const headersOf = (call) => (call.hasKey ? '    headers={"Authorization": f"Bearer {os.environ[\'KEY\']}"},\n' : "");

function requests(call) {
  const body =
    call.body === undefined
      ? `    data=${string(call.text)}.encode(),\n`
      : `    json=${python(call.body, "    ")},\n`;
  if (streams(call)) {
    return (
      `${importsOf(call)}import requests\n\n` +
      `reply = requests.post(\n    ${string(call.url)},\n${headersOf(call)}${body}    stream=True,\n    timeout=30,\n)\n` +
      "reply.raise_for_status()\nfor line in reply.iter_lines():\n    print(line.decode())\n"
    );
  }
  return (
    `${importsOf(call)}import requests\n\n` +
    `reply = requests.post(\n    ${string(call.url)},\n${headersOf(call)}${body}    timeout=30,\n)\n` +
    "reply.raise_for_status()\nprint(reply.json())\n"
  );
}

// What OpenAI's embeddings are asked, where that is the same call; undefined where it is not.
function embeddingsOf(body) {
  const { text, inputs, parameters, ...others } = body ?? {};
  const input = text ?? inputs;
  if (!input?.length || [input].flat().some((one) => typeof one !== "string")) return undefined;
  if (text !== undefined && inputs !== undefined) return undefined;
  const { truncate_dim: dimensions, normalize_embeddings: normalized, ...more } = parameters ?? {};
  if (Object.values({ ...others, ...more }).some((value) => value !== null)) return undefined;
  // There, vectors that are cut have length one, and others are as the model makes them.
  if (Boolean(normalized) !== Boolean(dimensions)) return undefined;
  return dimensions ? { input, dimensions } : { input };
}

function openai(call) {
  const key = call.hasKey ? 'os.environ["KEY"]' : '"none"';
  const base = new URL("v1", call.base).href;
  const asked = Object.entries(embeddingsOf(call.body));
  const named = asked.map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("");
  return (
    `${importsOf(call)}from openai import OpenAI\n\nclient = OpenAI(base_url=${string(base)}, api_key=${key})\n` +
    `answer = client.embeddings.create(\n    model=${string(call.name)},\n${named})\n` +
    `print(answer.data[0].embedding)\n`
  );
}

// What is the same at OpenAI's completions, under its names.
const COMPLETION = { max_new_tokens: "max_tokens", temperature: "temperature", top_p: "top_p", seed: "seed", stop: "stop" };
// Who sends one of these samples, whatever the model does unasked.
const OF_SAMPLING = ["temperature", "top_p", "top_k"];

// What OpenAI's completions are asked, where that is the same call; undefined where it is not.
function completionOf({ body }, card) {
  const { text, inputs, parameters, stream, ...others } = body ?? {};
  const prompt = text ?? inputs;
  if (typeof prompt !== "string" || (text !== undefined && inputs !== undefined)) return undefined;
  const { do_sample: asked, return_full_text: full, top_k: best, ...rows } = parameters ?? {};
  const given = Object.entries(rows).filter(([, value]) => value !== null);
  if (Object.values(others).some((value) => value !== null) || given.some(([name]) => !(name in COMPLETION))) return undefined;
  const named = Object.fromEntries(given.map(([name, value]) => [COMPLETION[name], value]));
  // There, a temperature of 0 says that the likeliest token is taken, all tokens are drawn from where
  // neither the call nor the model says of how many, and a stream has no prompt either.
  const usual = (name) => card.parameters.find((row) => row.name === name).default;
  const draws = asked ?? (OF_SAMPLING.some((name) => parameters?.[name] != null) || usual("do_sample"));
  const drawn = draws ? { extra_body: { top_k: best ?? usual("top_k") } } : { temperature: 0 };
  return { prompt, ...named, ...drawn, ...(stream ? { stream: true } : full === false ? {} : { echo: true }) };
}

function completion(call, card) {
  const key = call.hasKey ? 'os.environ["KEY"]' : '"none"';
  const asked = Object.entries(completionOf(call, card));
  const named = asked.map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("");
  const shown = streams(call)
    ? 'for piece in answer:\n    print(piece.choices[0].text, end="", flush=True)\n'
    : "print(answer.choices[0].text)\n";
  return (
    `${importsOf(call)}from openai import OpenAI\n\nclient = OpenAI(base_url=${string(new URL("v1", call.base).href)}, api_key=${key})\n` +
    `answer = client.completions.create(\n    model=${string(call.name)},\n${named})\n${shown}`
  );
}

const isOfTexts = (value) => [value].flat().length > 0 && [value].flat().every((one) => typeof one === "string");

// What its tensors and parameters can hold: texts by their names, and single values.
function isOfTensors({ body }) {
  if (streams({ body }) || body === null || typeof body !== "object" || Array.isArray(body)) return false;
  const { parameters, ...fields } = body;
  const values = Object.values(fields);
  return values.some(isOfTexts) && values.every((value) => isOfTexts(value) || typeof value !== "object" || value === null);
}

function tritonclient(call) {
  const { parameters, truncate, timeout_ms, stream, ...fields } = call.body ?? {};
  const base = new URL(call.base);
  const at = base.host + base.pathname.replace(/\/$/, "");
  const tls = base.protocol === "https:" ? ", ssl=True" : "";
  const [model, version] = call.name.split("/");
  const texts = Object.entries(fields).filter(([, value]) => isOfTexts(value));
  // A field of null counts as not sent, and this protocol has no null for it.
  const rest = Object.entries({ ...fields, truncate, timeout_ms }).filter(([name, value]) => value != null && !texts.some((row) => row[0] === name));
  const others = { ...parameters, ...Object.fromEntries(rest) };
  const more =
    (version === undefined ? "" : `    model_version=${string(version)},\n`) +
    (Object.keys(others).length ? `    parameters=${python(others, "    ")},\n` : "") +
    headersOf(call);
  const lists = Object.fromEntries(texts.map(([name, value]) => [name, [value].flat()]));
  return (
    `${importsOf(call)}import numpy as np\nimport tritonclient.http as triton\n\n` +
    `texts = ${python(lists)}\n\n` +
    `inputs = []\nfor name, values in texts.items():\n    tensor = triton.InferInput(name, [len(values)], "BYTES")\n` +
    `    tensor.set_data_from_numpy(np.array(values, dtype=object))\n    inputs.append(tensor)\n\n` +
    `client = triton.InferenceServerClient(${string(at)}${tls})\n` +
    `answer = client.infer(\n    ${string(model)},\n    inputs,\n${more})\nprint(answer.as_numpy("output"))\n`
  );
}

const LANGUAGES = [
  { name: "curl", write: curl },
  { name: "Python", write: requests },
  { name: "openai", operation: "openai.embeddings", write: openai, fits: ({ body }) => embeddingsOf(body) !== undefined },
  { name: "openai", operation: "openai.completions", write: completion, fits: (call, card) => completionOf(call, card) !== undefined },
  { name: "tritonclient", operation: "v2.infer", write: tritonclient, fits: isOfTensors },
];

export function languages(card, call) {
  const known = LANGUAGES.filter((row) => !row.operation || card?.operations.includes(row.operation));
  const fit = known.filter((row) => !row.fits || row.fits(call, card));
  return fit.map((row) => ({ name: row.name, write: (made) => row.write(made, card) }));
}

// `text` is the body as it will be sent, `body` its value where it is JSON.
export function callOf(name, text, base, hasKey) {
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  const path = `serve/${name.split("/").map(encodeURIComponent).join("/")}`;
  return { name, text, body, base, hasKey, url: new URL(path, base).href };
}

