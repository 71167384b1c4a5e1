-- Leave failed tasks that need no attention out of the dead letters: a catch handled the failure, or their run was retried.

drop index finished_failed;
drop index finished_failed_lane;
create index finished_failed on finished (seq) where state = 'failed' and fingerprint is not '';
create index finished_failed_lane on finished (lane_id, seq, run_id, fingerprint) where state = 'failed' and fingerprint is not '';
