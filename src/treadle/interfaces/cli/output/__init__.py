"""Output of commands: tables, formatted values, messages on stderr, live views."""
