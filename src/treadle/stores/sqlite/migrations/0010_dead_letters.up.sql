-- How many dead letters there are is counted in an index alone, lane by lane, whatever their rows hold.

create index finished_failed_lane on finished (lane_id, seq, run_id) where state = 'failed';
