// Continue a bulk action that one request could not finish; without JavaScript, a button does that.
(() => {
  const form = document.querySelector("form[data-continue]");
  if (form) form.requestSubmit();
})();
