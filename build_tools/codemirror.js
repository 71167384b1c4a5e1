// CodeMirror for the dashboard's editor, bundled by build_tools/assets.py: `treadleCode(textarea, ask)` puts an editor in place of a
// text area and keeps its value up to date. `ask(what, line, column)` returns completions or a hover for a place, or null. It lives in a shadow root, whose styles the content security policy allows.
import { autocompletion, snippetCompletion } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { HighlightStyle, bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorView, highlightActiveLineGutter, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { afl } from "../editors/codemirror/afl.js";

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.atom], color: "var(--accent)", fontWeight: "600", class: "tok-keyword" },
  { tag: tags.string, color: "var(--good)" },
  { tag: [tags.number, tags.propertyName], color: "var(--busy)" },
  { tag: tags.typeName, color: "var(--wait)", fontWeight: "550" },
  { tag: tags.comment, color: "var(--dim)", fontStyle: "italic" },
  { tag: tags.invalid, color: "var(--bad)" },
]);
const theme = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--card)", border: "1px solid var(--line)", borderRadius: "7px", minHeight: "24rem" },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.45" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-gutters, .cm-activeLineGutter": { color: "var(--dim)", backgroundColor: "var(--back)", border: "none" },
  ".cm-tooltip": { color: "var(--text)", backgroundColor: "var(--card)", border: "1px solid var(--line)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { color: "var(--card)", backgroundColor: "var(--accent)" },
  ".cm-completionInfo, .cm-treadle-hover": { padding: "0.4rem 0.6rem", maxWidth: "34rem", whiteSpace: "pre-wrap" },
  ".cm-treadle-hover code": { fontFamily: "var(--mono)" },
});
const icons = { module: "namespace", event: "function", struct: "class", field: "property", value: "variable" };

// Completions as the language server gives them, for the word before the cursor; after `.`, `(`, `,`, `:` and `=` also for none.
function completions(ask) {
  return async (context) => {
    const line = context.state.doc.lineAt(context.pos), word = context.matchBefore(/\w*/);
    if (!context.explicit && word.from === word.to && !/(?:\.|[(,:=]\s?)$/.test(line.text.slice(0, context.pos - line.from))) return null;
    const items = await ask("complete", line.number - 1, context.pos - line.from);
    if (!items || !items.length || context.aborted) return null;
    const dollar = line.text[word.from - line.from - 1] === "$" ? "." : "";
    const options = items.map(({ label, kind, detail, info, insert, order }) => {
      const shown = { label, detail, info: info || undefined, type: icons[kind] || kind, sortText: order, boost: order < "1" ? 1 : 0 };
      return insert.includes("$0") ? snippetCompletion(insert.replace("$0", "${}"), shown) : { ...shown, apply: dollar + insert };
    });
    return { from: word.from, options, validFor: /^\w*$/ };
  };
}

function hover(ask) {
  return hoverTooltip(async (view, pos) => {
    const line = view.state.doc.lineAt(pos), found = await ask("hover", line.number - 1, pos - line.from);
    if (!found) return null;
    const dom = document.createElement("div"), head = document.createElement("code");
    dom.className = "cm-treadle-hover";
    head.textContent = found.heading;
    dom.append(head, found.info ? `\n${found.info}` : "");
    const at = ([number, column]) => view.state.doc.line(number + 1).from + column;
    return { pos: at(found.start), end: at(found.end), create: () => ({ dom }) };
  });
}

window.treadleCode = (area, ask) => {
  const host = document.createElement("div");
  area.closest("label").after(host);
  area.closest("label").hidden = true;
  const root = host.attachShadow({ mode: "open" });
  const changed = EditorView.updateListener.of((update) => {
    if (!update.docChanged) return;
    area.value = update.state.doc.toString();
    area.dispatchEvent(new Event("input", { bubbles: true }));
  });
  const view = new EditorView({
    doc: area.value, parent: root, root,
    extensions: [
      lineNumbers(), highlightActiveLineGutter(), lintGutter(), history(), indentOnInput(), bracketMatching(), afl(),
      autocompletion({ override: [completions(ask)] }), hover(ask), syntaxHighlighting(colours), theme, changed, keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
      EditorView.contentAttributes.of({ "aria-label": "Source", spellcheck: "false", tabindex: "0" }),
    ],
  });
  const at = (line, column) => {
    const found = view.state.doc.line(Math.min(Math.max(line, 1), view.state.doc.lines));
    return Math.min(found.from + Math.max(column, 1) - 1, found.to);
  };
  return {
    show(found) {
      const diagnostics = found.map((each) => ({
        from: at(each.line, each.column), to: at(each.endLine, each.endColumn), severity: each.severity, message: each.message,
      }));
      view.dispatch(setDiagnostics(view.state, diagnostics));
    },
    go(line, column) {
      view.dispatch({ selection: { anchor: at(line, column) }, scrollIntoView: true });
      view.focus();
    },
  };
};
