// Bulk work that one request could not finish goes on by itself; without scripts, a button does that.
(() => {
  const form = document.querySelector("form[data-continue]");
  if (form) form.requestSubmit();
})();
