// An answer that comes in events: taking them apart, and what they have told so far.

// A function that takes the stream's text as it comes and gives the events that are whole by then.
export function reader() {
  let rest = "";
  return (text) => {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    return parts.map(eventOf).filter(({ data }) => data);
  };
}

function eventOf(part) {
  const event = { name: "message", data: "" };
  for (const line of part.split("\n")) {
    const [, field, value] = /^(event|data): ?(.*)$/s.exec(line) ?? [];
    if (field === "event") event.name = value;
    else if (field === "data") event.data += (event.data && "\n") + value;
  }
  return event;
}

// What has come of a stream that was asked for at `began`, milliseconds.
export class Told {
  texts = [];
  tokens = 0;
  first = null;
  error = null;
  isWhole = false;

  constructor(began) {
    this.began = began;
    this.last = began;
  }

  add({ name, data }, now) {
    this.last = now;
    if (data === "[DONE]") {
      this.isWhole = true;
      return;
    }
    const said = JSON.parse(data);
    if (name === "error") {
      this.error = said;
      return;
    }
    if (said.text) this.first ??= now;
    this.texts[said.index] = (this.texts[said.index] ?? "") + said.text;
    this.tokens += said.generated_tokens ?? 0;
  }

  // Several texts of one request with a number each.
  get text() {
    if (this.texts.length < 2) return this.texts[0] ?? "";
    return Array.from(this.texts, (text, at) => `${at + 1}: ${text ?? ""}`).join("\n\n");
  }

  // How fast it came, as this page saw it; the tokens are known once a text has ended.
  get pace() {
    const rows = [];
    if (this.first !== null) rows.push(`first text after ${(this.first - this.began).toFixed(0)} ms`);
    if (this.tokens) {
      const rate = (1000 * this.tokens) / Math.max(1, this.last - this.began);
      rows.push(`${this.tokens} tokens`, `${rate.toFixed(0)} tokens a second`);
    }
    return rows;
  }
}
