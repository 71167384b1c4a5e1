-- Find the takeovers of a run without reading the log of all its tasks.

create index log_takeovers on log (run_id, seq) where move = 'expire';
