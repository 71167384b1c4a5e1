// Evaluates a tree-sitter grammar and writes its rules as JSON, in the form of tree-sitter's own grammar.json.
import { createRequire } from "node:module";

const symbol = (name) => ({ type: "SYMBOL", name });
const rule = (value) => {
  if (typeof value === "string") return { type: "STRING", value };
  if (value instanceof RegExp) return { type: "PATTERN", value: value.source };
  return value;
};
const members = (type) => (...parts) => ({ type, members: parts.map(rule) });
const content = (type) => (part) => ({ type, content: rule(part) });
const ranked = (_, part) => rule(part);
Object.assign(globalThis, {
  seq: members("SEQ"),
  choice: members("CHOICE"),
  optional: (part) => ({ type: "CHOICE", members: [rule(part), { type: "BLANK" }] }),
  repeat: content("REPEAT"),
  repeat1: content("REPEAT1"),
  field: (name, part) => ({ type: "FIELD", name, content: rule(part) }),
  alias: (part, name) => ({ type: "ALIAS", content: rule(part), value: name.name ?? name }),
  token: content("TOKEN"),
  prec: Object.assign(ranked, { left: ranked, right: ranked }),
  grammar: (made) => {
    const $ = new Proxy({}, { get: (_, name) => symbol(name) });
    const list = (make) => (make ? make($).map(rule) : []);
    const rules = Object.fromEntries(Object.entries(made.rules).map(([name, make]) => [name, rule(make($))]));
    return { name: made.name, word: made.word($).name, extras: list(made.extras), externals: list(made.externals), rules };
  },
});
process.stdout.write(JSON.stringify(createRequire(import.meta.url)(process.argv[2])));
