-- Leave failed tasks that need no attention out of the dead letters: a catch handled the failure, or their run was retried.

drop index finished_failed;
create index finished_failed on finished (seq) include (lane_id, run_id) where state = 'failed' and fingerprint is distinct from '';
