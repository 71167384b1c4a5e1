// Check the text shortly after the last keystroke and show the diagnostics in place; Tab indents. With CodeMirror
// (vendor/codemirror.js), an editor with colours and diagnostics in the text takes the place of each text area.
(() => {
  const form = document.querySelector("[data-editor]"), place = document.getElementById("check");
  if (!form || !place) return;
  let timer = null, number = 0;
  const areas = [...form.querySelectorAll("textarea")];
  const codes = window.treadleCode ? areas.map((area, index) => window.treadleCode(area, (what, line, column) => ask(what, index, line, column))) : [];

  async function ask(what, source, line, column) {
    const body = new URLSearchParams([...new FormData(form)].filter(([name]) => name !== "flow"));
    for (const [name, value] of Object.entries({ source, line, column })) body.set(name, value);
    const answer = await fetch(`/editor/${what}`, { method: "POST", body, credentials: "same-origin" });
    return answer.ok ? answer.json() : null;
  }

  function areaOf(source) {
    return Math.max([...form.querySelectorAll("input[name=name]")].findIndex((each) => each.value === source), 0);
  }

  async function check() {
    const mine = ++number;
    const body = new URLSearchParams([...new FormData(form)].filter(([name]) => name !== "flow"));
    const answer = await fetch(`${document.documentElement.dataset.prefix ?? ""}/editor/check`, { method: "POST", body, credentials: "same-origin" });
    if (!answer.ok || mine !== number) return;
    place.innerHTML = await answer.text();
    mark();
    document.dispatchEvent(new CustomEvent("treadle:fresh"));
  }

  function mark() {
    const bad = place.querySelectorAll(".diagnostic.error").length;
    for (const area of areas) area.setAttribute("aria-invalid", String(bad > 0));
    const found = [...place.querySelectorAll("[data-line]")].map(({ dataset: d }) => ({
      area: areaOf(d.source), line: +d.line, column: +d.column, endLine: +d.endLine, endColumn: +d.endColumn,
      severity: d.severity, message: d.message,
    }));
    codes.forEach((code, index) => code.show(found.filter((each) => each.area === index)));
  }

  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(check, 350); });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Tab" || event.target.tagName !== "TEXTAREA" || event.shiftKey || event.ctrlKey) return;
    event.preventDefault();
    const area = event.target, at = area.selectionStart;
    area.setRangeText("  ", at, area.selectionEnd, "end");
    form.dispatchEvent(new Event("input", { bubbles: true }));
  });
  place.addEventListener("click", (event) => {
    const found = event.target.closest("[data-line]");
    if (!found) return;
    const index = areaOf(found.dataset.source), area = areas[index];
    if (codes[index]) return codes[index].go(Number(found.dataset.line), Number(found.dataset.column));
    const at = area.value.split("\n").slice(0, Number(found.dataset.line) - 1).join("\n").length + 1;
    area.focus();
    area.setSelectionRange(at, at);
  });
  mark();
})();
