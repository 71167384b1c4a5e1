"""Remote workers: programs in any language that claim and settle tasks through an interface."""
