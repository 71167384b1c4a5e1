-- Put all rows of finished tasks and of the log back into one table each; this copies those of later partitions.

do $$
declare
  parent text;
begin
  foreach parent in array array['finished', 'log'] loop
    execute format('alter table %I detach partition %I', parent, parent || '_rest');
    execute format('alter table %I drop constraint if exists bounds', parent || '_rest');
    execute format('insert into %I select * from %I', parent || '_rest', parent);
    execute format('drop table %I', parent);
    execute format('alter table %I rename to %I', parent || '_rest', parent);
  end loop;
end
$$;

drop function treadle_drop_part(text, text, bigint, bigint);
drop function treadle_replace_part(text, text, text, uuid, uuid, text, uuid, boolean);
drop function treadle_mixed(uuid, uuid);
drop function treadle_open_parts(uuid);
drop function treadle_add_part(uuid, uuid);
drop function treadle_attach_part(text, text, uuid, uuid);
drop function treadle_make_part(text, text, uuid, uuid);
drop function treadle_bound_part(text, text, uuid, uuid, text);
drop function treadle_validate_part(text);
drop function treadle_parts();
drop function treadle_id_time(uuid);
drop function treadle_first_id(bigint);

alter index finished_rest_seq rename to finished_seq;
alter index finished_rest_failed rename to finished_failed;
alter index finished_rest_run rename to finished_run;
alter index finished_rest_root rename to finished_root;
alter index finished_rest_created rename to finished_created;
alter index finished_rest_error rename to finished_error;
alter index finished_rest_words rename to finished_words;
alter index finished_rest_trace rename to finished_trace;
alter index log_rest_takeovers rename to log_takeovers;
alter table log rename constraint log_rest_entity_id_version_key to log_entity_id_version_key;

alter table finished reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
alter table finished set (autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2);
alter table log reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_insert_scale_factor, autovacuum_analyze_scale_factor);
alter table dedupe reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay);
alter table runs reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
alter table steps reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
alter table lines reset (autovacuum_vacuum_scale_factor);
