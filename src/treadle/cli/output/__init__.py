"""What commands print: tables, formatted values, messages on stderr, live views."""
