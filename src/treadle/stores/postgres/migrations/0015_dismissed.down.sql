drop index finished_failed;
create index finished_failed on finished (seq) include (lane_id, run_id) where state = 'failed';
