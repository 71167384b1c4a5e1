// Count clocks down between reloads, by the store's clock, whose time the page contains.
(() => {
  const made = document.body.dataset.now;
  const ahead = made ? Date.now() - new Date(made) : 0;

  function left(ms) {
    const s = Math.round(Math.abs(ms) / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60);
    const text = h >= 48 ? `${Math.round(h / 24)} d` : h ? `${h} h ${m % 60} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
    return ms >= 0 ? `in ${text}` : `${text} ago`;
  }

  let passed = 0;
  function tick() {
    // Refresh values without log entries, such as heartbeats, periodically.
    const again = document.querySelector("[data-again]");
    if (again && document.visibilityState === "visible" && ++passed >= Number(again.dataset.again)) { passed = 0; window.treadle?.soon(); }
    const now = Date.now() - ahead;
    for (const clock of document.querySelectorAll("time[data-countdown]")) clock.textContent = left(new Date(clock.dateTime) - now);
    for (const bar of document.querySelectorAll("progress[data-from][data-until]")) {
      const from = new Date(bar.dataset.from), until = new Date(bar.dataset.until);
      bar.value = Math.min(Math.max((until - now) / (until - from), 0), 1);
    }
  }

  // Instants that the page shows in another time zone, also in the viewer's.
  const parts = { month: "short", day: "numeric", hour: "numeric", minute: "2-digit", timeZoneName: "short" };
  function local() {
    for (const each of document.querySelectorAll("[data-local]")) {
      each.textContent = `, ${new Date(each.dataset.local).toLocaleString([], parts)} for you`;
    }
  }

  // Fields for instants have the viewer's time zone; their forms send UTC.
  const pad = (number) => String(number).padStart(2, "0");
  const minute = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}`;
  function localFields() {
    for (const field of document.querySelectorAll("form:not([data-keep]) input[data-utc]")) {
      field.parentElement.querySelector("[data-zone]")?.remove();
      const at = new Date(`${field.defaultValue}Z`);
      if (field.defaultValue && !isNaN(at)) field.value = minute(at);
    }
  }
  addEventListener("formdata", (event) => {
    for (const { name, value } of event.target.querySelectorAll("input[data-utc]")) {
      if (value) event.formData.set(name, `${new Date(value).toISOString().slice(0, 16)}Z`);
    }
  });

  setInterval(tick, 1000);
  local();
  localFields();
  document.addEventListener("treadle:fresh", () => { passed = -1; tick(); local(); localFields(); });
  tick();
})();
