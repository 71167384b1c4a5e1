// Reads programs by name as JSON from stdin; writes, for TextMate and CodeMirror, the runs [start, end, class] of each.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const editors = process.argv[2];
const require = createRequire(`${editors}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const programs = JSON.parse(readFileSync(0, "utf8"));

const SCOPES = [
  ["meta.embedded", "code"],
  ["comment", "comment"],
  ["string", "string"],
  ["constant.numeric", "number"],
  ["constant.language", "constant"],
  ["keyword.operator", "operator"],
  ["keyword", "keyword"],
  ["storage", "keyword"],
  ["support.function", "keyword"],
  ["support.type", "type"],
  ["variable.other.input", "input"],
  ["variable", "name"],
  ["entity.name", "name"],
  ["punctuation", "punctuation"],
];

async function textmate() {
  const tm = require("vscode-textmate");
  const oniguruma = require("vscode-oniguruma");
  await oniguruma.loadWASM(readFileSync(require.resolve("vscode-oniguruma/release/onig.wasm")).buffer);
  const path = `${editors}/vscode/syntaxes/afl.tmLanguage.json`;
  const registry = new tm.Registry({
    onigLib: Promise.resolve({
      createOnigScanner: (patterns) => new oniguruma.OnigScanner(patterns),
      createOnigString: (text) => new oniguruma.OnigString(text),
    }),
    loadGrammar: async (scope) => (scope === "source.afl" ? tm.parseRawGrammar(readFileSync(path, "utf8"), path) : null),
  });
  const grammar = await registry.loadGrammar("source.afl");
  return (text) => {
    const runs = [];
    let stack = tm.INITIAL;
    let at = 0;
    for (const line of text.split("\n")) {
      const result = grammar.tokenizeLine(line, stack);
      for (const token of result.tokens) {
        const found = SCOPES.find(([prefix]) => token.scopes.some((scope) => scope.startsWith(prefix)));
        if (found) runs.push([at + token.startIndex, at + Math.min(token.endIndex, line.length), found[1]]);
      }
      stack = result.ruleStack;
      at += line.length + 1;
    }
    return runs;
  };
}

const TAGS = {
  comment: "comment",
  string: "string",
  number: "number",
  atom: "constant",
  operator: "operator",
  keyword: "keyword",
  typeName: "type",
  propertyName: "input",
  variableName: "name",
  punctuation: "punctuation",
  meta: "code",
};

async function codemirror() {
  const { highlightTree, tagHighlighter, tags } = await load("@lezer/highlight");
  const { language } = await import(pathToFileURL(`${editors}/codemirror/afl.js`));
  const highlighter = tagHighlighter(Object.entries(TAGS).map(([tag, name]) => ({ tag: tags[tag], class: name })));
  return (text) => {
    const runs = [];
    highlightTree(language.parser.parse(text), highlighter, (from, to, name) => runs.push([from, to, name]));
    return runs;
  };
}

const result = {};
for (const [name, make] of Object.entries({ textmate, codemirror })) {
  const run = await make();
  result[name] = Object.fromEntries(Object.entries(programs).map(([key, text]) => [key, run(text)]));
}
process.stdout.write(JSON.stringify(result));
