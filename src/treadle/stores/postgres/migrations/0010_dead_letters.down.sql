drop index finished_failed;
create index finished_failed on finished (seq) where state = 'failed';
