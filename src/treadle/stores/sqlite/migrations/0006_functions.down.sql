-- Removes records, mail and outcomes of effects. Function runs that are still live have nobody to tell then.
drop trigger mail_goes_with_its_run;
drop trigger runs_make_legal_moves;
drop table legal_moves;
drop index lines_run;
drop table idempotency_outcomes;
drop table mail;
drop table record_items;
drop table records;
drop index runs_parent;
alter table runs drop column awaiting;
alter table runs drop column parent_step_id;
