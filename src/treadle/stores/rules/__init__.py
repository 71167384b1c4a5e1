"""Rules that every store applies to units, as pure code: guards, repeats, kinds of settlements, keys, and readiness."""
