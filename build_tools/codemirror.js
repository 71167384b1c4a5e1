// CodeMirror for the dashboard's editor, bundled by build_tools/assets.py: `treadleCode(textarea)` puts an editor in place of a
// text area and keeps its value up to date. It lives in a shadow root, whose styles the content security policy allows.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { HighlightStyle, bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorView, highlightActiveLineGutter, keymap, lineNumbers } from "@codemirror/view";
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
});

window.treadleCode = (area) => {
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
      syntaxHighlighting(colours), theme, changed, keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
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
