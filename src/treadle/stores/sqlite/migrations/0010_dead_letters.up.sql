-- Count dead letters by lane in an index alone, without reading their rows.

create index finished_failed_lane on finished (lane_id, seq, run_id) where state = 'failed';
