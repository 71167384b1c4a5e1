// AFL for CodeMirror 6: `extensions: [afl()]`. The words and patterns come from tokens.js, which is derived.
import { LanguageSupport, StreamLanguage } from "@codemirror/language";
import * as tokens from "./tokens.js";

const ROLES = { constant: "atom", operator: "operator" };
const CALLED = new Set(tokens.called);
const TYPES = new Set(tokens.types);
const OPERATORS = new Set(tokens.operators);

/** Classify a word: it is a keyword or type unless what follows shows that it names something. */
function classify(word, stream) {
  const role = tokens.keywords[word];
  if (role === undefined) return TYPES.has(word) && !stream.match(tokens.namingLikeType, false) ? "typeName" : "variableName";
  if (stream.match(CALLED.has(word) ? tokens.namingOfCalled : tokens.naming, false)) return "variableName";
  return ROLES[role] ?? "keyword";
}

/** Read to the end of a comment or string, or of the line. */
function readUntil(stream, state, end, className, escapes) {
  while (!stream.eol()) {
    if (escapes && stream.eat("\\")) stream.next();
    else if (stream.match(end)) {
      state.within = null;
      return className;
    } else stream.next();
  }
  return className;
}

/** Read Python to the brace that closes the script, outside of Python's strings and comments. */
function readScript(stream, state) {
  const script = state.script;
  while (!stream.eol()) {
    if (script.quote) {
      if (stream.eat("\\")) stream.next();
      else if (stream.match(script.quote)) script.quote = null;
      else stream.next();
    } else if (stream.match(/^("""|'''|"|')/, false)) {
      script.quote = stream.match(/^("""|'''|"|')/)[0];
    } else if (stream.peek() === "#") {
      stream.skipToEnd();
    } else {
      const next = stream.next();
      if (next === "{") script.depth += 1;
      else if (next === "}" && --script.depth === 0) {
        state.script = null;
        return "meta";
      }
    }
  }
  if (script.quote?.length === 1) script.quote = null;
  return "meta";
}

export const parser = {
  name: "afl",
  startState: () => ({ within: null, script: null, scriptSoon: 0, depth: 0 }),
  copyState: (state) => ({ ...state, script: state.script && { ...state.script } }),
  token(stream, state) {
    if (state.script) return readScript(stream, state);
    if (state.within === "comment") return readUntil(stream, state, "*/", "comment", false);
    if (state.within === "string") return readUntil(stream, state, '"', "string", true);
    if (stream.eatSpace()) return null;
    if (stream.match("//")) {
      stream.skipToEnd();
      return "comment";
    }
    if (stream.match("/*")) {
      state.within = "comment";
      return readUntil(stream, state, "*/", "comment", false);
    }
    const soon = state.scriptSoon;
    state.scriptSoon = 0;
    if (stream.match('"')) {
      state.within = "string";
      return readUntil(stream, state, '"', "string", true);
    }
    const word = stream.match(tokens.word);
    if (word) {
      const className = classify(word[0], stream);
      state.scriptSoon = word[0] === "script" && className === "keyword" ? 2 : soon === 2 ? 1 : 0;
      return className;
    }
    if (stream.match(tokens.input)) return "propertyName";
    if (stream.match(tokens.number)) return "number";
    if (soon && stream.match("{")) {
      state.script = { depth: 1, quote: null };
      return "meta";
    }
    const sign = stream.match(tokens.sign);
    if (!sign) {
      stream.next();
      return "invalid";
    }
    if ("{[(#{".includes(sign[0])) state.depth += 1;
    else if ("}])".includes(sign[0])) state.depth = Math.max(0, state.depth - 1);
    return OPERATORS.has(sign[0]) ? "operator" : "punctuation";
  },
  indent(state, textAfter, context) {
    if (state.script || state.within) return null;
    return (state.depth - (/^\s*[}\])]/.test(textAfter) ? 1 : 0)) * context.unit;
  },
  languageData: {
    commentTokens: { line: "//", block: { open: "/*", close: "*/" } },
    closeBrackets: { brackets: ["(", "[", "{", '"'] },
    wordChars: "$",
    indentOnInput: /^\s*[}\])]$/,
  },
};

export const language = StreamLanguage.define(parser);

/** The extension of CodeMirror. */
export function afl() {
  return new LanguageSupport(language);
}
