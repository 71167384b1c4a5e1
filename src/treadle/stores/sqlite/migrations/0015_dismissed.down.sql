drop index finished_failed;
drop index finished_failed_lane;
create index finished_failed on finished (seq) where state = 'failed';
create index finished_failed_lane on finished (lane_id, seq, run_id) where state = 'failed';
