-- Alerts: the moves of their records, and the failed runs of the last minutes by an index.

insert into legal_moves (entity, from_state, to_state) values
  ('alert_rule', 'active', 'removed'), ('alert', 'firing', 'resolved');

create index runs_failed on runs (namespace, finished_at) where state = 'failed';
