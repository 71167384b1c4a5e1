-- Removes records, mail and outcomes of effects. Function runs that are still live have nobody to tell then.
drop trigger mail_goes_with_its_run on runs;
drop trigger runs_make_legal_moves on runs;
drop trigger records_make_legal_moves on records;
drop function treadle_forget_mail();
drop function treadle_refuse_move();
drop table legal_moves;
drop index lines_run;
drop table idempotency_outcomes;
drop table mail;
drop table record_items;
drop table records;
drop index runs_parent;
alter table runs drop column awaiting;
alter table runs drop column parent_step_id;
