create index finished_any_failed on finished (seq) include (lane_id, run_id) where state = 'failed';
drop index finished_failed;
alter index finished_any_failed rename to finished_failed;
