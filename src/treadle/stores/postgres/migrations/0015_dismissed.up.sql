-- Leave failed tasks that need no attention out of the dead letters: a catch handled the failure, or their run was retried.
-- The old index is dropped last, because that locks out all readers until the transaction ends.

create index finished_unhandled on finished (seq) include (lane_id, run_id) where state = 'failed' and fingerprint is distinct from '';
drop index finished_failed;
alter index finished_unhandled rename to finished_failed;
